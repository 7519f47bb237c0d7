// Implements gathering.h.
#include "launch/gathering.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <map>

#include "base/error.h"
#include "base/text.h"
#include "launch/hello.h"
#include "launch/meeting_file.h"
#include "rundir/worker_protocol.h"
#include "store/store_server.h"

namespace optimus {

namespace {

constexpr double kSecondsBetweenHellos = 1;
constexpr Seconds kRefusalPatience{10};

constexpr const char* kGoneKey = "gone";
// How long to wait for a store that was reachable before: rank 0 may only have been stopped, or restart.
// Limited by the overall timeout.
constexpr Seconds kReturnPatience{30};

std::string hello_key(int rank) { return fmt::format("hello/{}", rank); }
std::string welcome_key(const std::string& nonce) { return "welcome/" + nonce; }
std::string torch_key(const LaunchInfo& launch) { return "optimus-megatron/" + launch.job; }

// For several hosts: checks everything that must be known in advance.
std::string token_for_hosts(const GatheringOptions& options) {
  const LaunchInfo& launch = options.launch;
  if (!launch.missing.empty())
    throw UserError("{}: ranks on several hosts need {}, the host of rank 0", launch.launcher,
                    join(launch.missing, ", "));
  if (!options.token)
    throw UserError("{}: a run on several hosts needs a token, the same on all hosts; {}", launch.launcher,
                    how_to_make_token());
  return options.token->text;
}

RankHello own_hello(const LaunchInfo& launch, const KeyStore& store) {
  return {
      make_token(), {host_name(), store.own_address(), ::getpid(), launch.local_rank}, store.store_address()};
}

// A rank that reaches the store through the loopback interface is on rank 0's machine, so both get the
// address at which other ranks reach rank 0. With etcd, each rank has the address from which it reaches etcd.
void settle_addresses(std::vector<RankHello>& hellos, bool is_etcd) {
  std::string first = hellos[0].rank.address;
  if (!is_etcd)
    for (const RankHello& hello : hellos)
      if (!is_loopback(hello.store_address) && !hello.store_address.empty()) first = hello.store_address;
  for (RankHello& hello : hellos)
    if (is_loopback(hello.rank.address) || hello.rank.address.empty()) hello.rank.address = first;
}

}  // namespace

struct Gathering::Parts {
  GatheringOptions options;
  StorePlace place;
  std::unique_ptr<StoreServer> server;
  std::unique_ptr<MeetingFile> file;
  std::shared_ptr<KeyStore> store;
  std::string session = make_token();
  std::map<int, RankHello> here;  // by rank
  bool is_patient = true;         // false: the timeout for the other ranks has passed

  void host();
  void announce();
  // Reads the join requests of ranks that have not joined yet.
  void look();
};

void Gathering::Parts::host() {
  const LaunchInfo& launch = options.launch;
  place.token =
      launch.is_one_host ? (options.token ? options.token->text : make_token()) : token_for_hosts(options);
  if (!options.store.empty()) {
    place = parse_store(options.store, place.token);
    return;
  }
  StoreServerOptions how{.token = place.token};
  if (!launch.is_one_host) how.where = Listening::everywhere;
  // torchrun itself uses the port.
  if (!launch.is_one_host && !launch.has_torch_store) how.port = launch.master_port;
  server = std::make_unique<StoreServer>(how);
  place.port = server->port();
}

namespace {

// torchrun's store may be on another host than rank 0: returns this machine's address on the route to it.
std::string address_towards(const LaunchInfo& launch) {
  const Outcome<Socket> way = Socket::connect(launch.master_host, launch.master_port,
                                              Deadline::after(Seconds(10), "torchrun's store"));
  const std::string own = way ? way->own_address() : "";
  return own.empty() || is_loopback(own) ? launch.master_host : own;
}

}  // namespace

void Gathering::Parts::announce() {
  const LaunchInfo& launch = options.launch;
  if (launch.is_one_host)
    file = std::make_unique<MeetingFile>(meeting_file(process_environment(), launch.job),
                                         MeetingPlace{place.port, place.token});
  else if (launch.has_torch_store && !place.is_etcd)
    options.torch.announce(launch.master_host, launch.master_port, torch_key(launch),
                           fmt::format("{}:{}", address_towards(launch), place.port));
}

void Gathering::Parts::look() {
  for (int rank = 1; rank < options.launch.world_size; ++rank) {
    if (here.contains(rank)) continue;
    const auto said = value_or_throw(store->find(hello_key(rank)));
    if (said) here[rank] = parse_hello(*said);
  }
}

Gathering::Gathering(GatheringOptions options) : parts_(std::make_unique<Parts>()) {
  parts_->options = std::move(options);
  parts_->host();
  const Deadline deadline = Deadline::after(Seconds(10), "the store");
  parts_->store = value_or_throw(open_store(parts_->place, deadline));
  value_or_throw(parts_->store->clear());
  parts_->announce();
  parts_->here[0] = own_hello(parts_->options.launch, *parts_->store);
}

Gathering::~Gathering() { (void)parts_->store->clear(); }

std::vector<PresentRank> Gathering::wait_for_others(const std::function<void(const std::string&)>& tell) {
  const int size = parts_->options.launch.world_size;
  const Deadline deadline = Deadline::after(parts_->options.patience, "the other ranks");
  const Deadline worth_telling = Deadline::after(Seconds(10), "the other ranks");
  const auto missing = [&] {
    std::vector<int> all;
    for (int rank = 0; rank < size && all.size() < 8; ++rank)
      if (!parts_->here.contains(rank)) all.push_back(rank);
    return fmt::format("{} of {} ranks have joined; missing: {}{}", parts_->here.size(), size,
                       fmt::join(all, ", "), all.size() == 8 ? ", …" : "");
  };
  bool is_told = false;
  for (int look = 0;; ++look) {
    parts_->look();
    if (const auto gone = value_or_throw(parts_->store->find(kGoneKey)))
      throw UserError("{} before the run began", *gone);
    if (static_cast<int>(parts_->here.size()) == size) break;
    parts_->options.check_interrupted();
    parts_->is_patient = !deadline.has_passed();
    if (!parts_->is_patient)
      throw UserError(
          "{}, after {}; check that the token is the same on all hosts and that they can reach {}", missing(),
          text(parts_->options.patience), parts_->place.host);
    if (!is_told && worth_telling.has_passed()) tell(missing()), is_told = true;
    pause_before_look(look);
  }
  std::vector<RankHello> hellos;
  for (const auto& [rank, hello] : parts_->here) hellos.push_back(hello);
  settle_addresses(hellos, parts_->place.is_etcd);
  std::vector<PresentRank> ranks;
  for (const RankHello& hello : hellos) ranks.push_back(hello.rank);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    parts_->here[static_cast<int>(rank)].rank = ranks[rank];
  return ranks;
}

Gathered Gathering::welcome(const Json& settings) {
  Gathered result{parts_->place, parts_->store, "run/" + parts_->session + "/", {}, settings};
  for (const auto& [rank, hello] : parts_->here) result.ranks.push_back(hello.rank);
  const Json answer = {
      {"prefix", result.prefix}, {"ranks", ranks_json(result.ranks)}, {"settings", settings}};
  // The long part is stored once; each reply refers to it.
  value_or_throw(result.store->set(result.prefix + "settings", answer.dump()));
  for (const auto& [rank, hello] : parts_->here)
    value_or_throw(result.store->set(welcome_key(hello.nonce), Json{{"prefix", result.prefix}}.dump()));
  return result;
}

void Gathering::refuse(const std::string& why) {
  const Deadline deadline = Deadline::after(kRefusalPatience, "the other ranks");
  std::map<int, bool> is_told;
  try {
    for (int look = 0; !deadline.has_passed(); ++look) {
      parts_->look();
      for (const auto& [rank, hello] : parts_->here)
        if (!is_told[rank])
          is_told[rank] =
              parts_->store->set(welcome_key(hello.nonce), Json{{"refused", why}}.dump()).has_value();
      if (!parts_->is_patient || std::ssize(parts_->here) == parts_->options.launch.world_size) break;
      parts_->options.check_interrupted();
      pause_before_look(look);
    }
    // Gives them time to read the reply before the store ends.
    for (int i = 0; i < 6; ++i) pause_before_look(6);
    // the store is unreachable, or the user interrupts: the other ranks detect that on their own
  } catch (...) {
  }
}

namespace {

// The address of rank 0's store, if it is known at present.
std::optional<StorePlace> place_now(const GatheringOptions& options) {
  const LaunchInfo& launch = options.launch;
  StorePlace place;
  if (launch.is_one_host) {
    const auto meeting = read_meeting(meeting_file(process_environment(), launch.job));
    if (!meeting) return std::nullopt;
    place.port = meeting->port, place.token = meeting->token;
  } else {
    place.token = token_for_hosts(options);
    place.host = launch.master_host, place.port = launch.master_port;
  }
  if (!options.store.empty()) return parse_store(options.store, place.token);
  if (launch.is_one_host || !launch.has_torch_store) return place;
  const auto told = options.torch.look(launch.master_host, launch.master_port, torch_key(launch));
  if (!told) return std::nullopt;
  std::tie(place.host, place.port) = parse_host_port(*told, "the address of rank 0 in torchrun's store");
  return place;
}

// Sends join requests until a reply arrives. Fails if the store does: rank 0 may then have another address.
Outcome<std::string> wait_for_welcome(const GatheringOptions& options, KeyStore& store,
                                      const Deadline& deadline) {
  const RankHello hello = own_hello(options.launch, store);
  for (int look = 0;; ++look) {
    // Repeat the request periodically: rank 0 clears what an earlier run left in etcd, and with it requests
    // that came too early.
    if (look % static_cast<int>(kSecondsBetweenHellos / 0.05) == 0)
      if (const auto said = store.set(hello_key(options.launch.rank), text(hello)); !said)
        return tl::unexpected(said.error());
    auto found = store.find(welcome_key(hello.nonce));
    if (!found) return tl::unexpected(found.error());
    if (*found) return std::move(**found);
    if (deadline.has_passed()) return failure("rank 0 does not respond");
    options.check_interrupted();
    pause_before_look(look);
  }
}

Outcome<void> read_welcome(const GatheringOptions& options, const std::string& answer, Gathered& result) {
  const Json json = parse_json(answer, "rank 0's reply");
  const JsonView view(json, "rank 0's reply");
  if (const auto refused = view.find("refused")) throw RankRefused{refused->text()};
  result.prefix = view.at("prefix").text();
  const auto settings = result.store->find(result.prefix + "settings");
  if (!settings || !*settings) return failure("rank 0's settings are missing");
  const Json document = parse_json(**settings, "rank 0's settings");
  const JsonView all(document, "rank 0's settings");
  result.ranks = parse_present_ranks(all.at("ranks")), result.settings = all.at("settings").raw();
  if (static_cast<int>(result.ranks.size()) != options.launch.world_size)
    throw UserError("rank 0 reports {} ranks, this rank expects {}", result.ranks.size(),
                    options.launch.world_size);
  return {};
}

// Registers a last will first, so that the others do not wait for a rank that dies. was_there: set when the
// store has responded.
Outcome<Gathered> say_hello(const GatheringOptions& options, const StorePlace& place,
                            const Deadline& deadline, bool& was_there) {
  auto opened = place.is_etcd ? open_etcd_store(place, deadline) : open_tcp_store(place, deadline);
  if (!opened) return tl::unexpected(opened.error());
  was_there = true;
  Gathered result{place, std::move(*opened), "", {}, {}};
  const int rank = options.launch.rank;
  const std::string will =
      fmt::format("rank {} (process {} on {}) has disconnected", rank, ::getpid(), host_name());
  if (const auto left = result.store->set_will(kGoneKey, will); !left) return tl::unexpected(left.error());
  const Outcome<std::string> answer = wait_for_welcome(options, *result.store, deadline);
  const Outcome<void> taken =
      answer ? read_welcome(options, *answer, result) : Outcome<void>(tl::unexpected(answer.error()));
  if (!taken) {
    (void)result.store->set_will("", "");  // it will try again
    return tl::unexpected(taken.error());
  }
  value_or_throw(result.store->set_will(result.prefix + kEndedKey, will));
  return result;
}

}  // namespace

Gathered join_gathering(const GatheringOptions& options) {
  const Deadline deadline = Deadline::after(options.patience, "rank 0");
  std::optional<Deadline> back;  // deadline for rank 0 to return after its store was lost
  std::string why = "it has not published the address of its store";
  for (int look = 0;; ++look) {
    bool was_there = false;
    if (const auto place = place_now(options)) {
      auto joined = say_hello(options, *place, deadline, was_there);
      if (joined) return std::move(*joined);
      why = joined.error().why;
    }
    if (was_there)
      back = Deadline::after(Seconds(std::min(kReturnPatience.value, options.patience.value)), "rank 0");
    if (back && back->has_passed())
      throw UserError("rank {}: lost the connection to rank 0: {}", options.launch.rank, why);
    if (deadline.has_passed())
      throw UserError("rank {} has not found rank 0 within {}: {}", options.launch.rank,
                      text(options.patience), why);
    options.check_interrupted();
    pause_before_look(look);
  }
}

}  // namespace optimus
