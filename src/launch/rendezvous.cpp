// Implements rendezvous.h.
#include "launch/rendezvous.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <map>

#include "base/error.h"
#include "base/text.h"
#include "launch/join_request.h"
#include "launch/rendezvous_file.h"
#include "rundir/worker_protocol.h"
#include "store/store_server.h"

namespace optimus {

namespace {

constexpr double kJoinRequestInterval = 1;
constexpr Seconds kRefusalTimeout{10};

constexpr const char* kLostKey = "gone";
// How long to wait if the store becomes unreachable. Rank 0 may only have been stopped, or may restart. The
// overall timeout also limits this wait.
constexpr Seconds kReconnectTimeout{30};

std::string join_request_key(int rank) { return fmt::format("hello/{}", rank); }
std::string join_reply_key(const std::string& nonce) { return "welcome/" + nonce; }
std::string torch_key(const LaunchInfo& launch) { return "optimus-megatron/" + launch.job; }

// For runs on several hosts. Checks all settings that must be known in advance, and returns the token.
std::string token_for_hosts(const RendezvousOptions& options) {
  const LaunchInfo& launch = options.launch;
  if (!launch.missing.empty())
    throw UserError("{}: ranks on several hosts require {}, which must specify the host of rank 0",
                    launch.launcher, join(launch.missing, ", "));
  if (!options.token)
    throw UserError("{}: a run on several hosts requires the same token on all hosts; {}", launch.launcher,
                    token_instructions());
  return options.token->text;
}

RankJoinRequest own_join_request(const LaunchInfo& launch, const KeyStore& store) {
  return {generate_token(),
          {host_name(), store.own_address(), ::getpid(), launch.local_rank},
          store.store_address()};
}

// A rank that reaches the store through the loopback interface is on the same machine as rank 0. So both get
// the address at which other ranks reach rank 0. With etcd, the address of a rank is the one from which it
// reaches etcd.
void resolve_addresses(std::vector<RankJoinRequest>& join_requests, bool is_etcd) {
  std::string rank_0_address = join_requests[0].rank.address;
  if (!is_etcd)
    for (const RankJoinRequest& join_request : join_requests)
      if (!is_loopback(join_request.store_address) && !join_request.store_address.empty())
        rank_0_address = join_request.store_address;
  for (RankJoinRequest& join_request : join_requests)
    if (is_loopback(join_request.rank.address) || join_request.rank.address.empty())
      join_request.rank.address = rank_0_address;
}

}  // namespace

struct Rendezvous::Impl {
  RendezvousOptions options;
  StoreAddress address;
  std::unique_ptr<StoreServer> server;
  std::unique_ptr<RendezvousFile> file;
  std::shared_ptr<KeyStore> store;
  std::string session = generate_token();
  std::map<int, RankJoinRequest> join_requests_by_rank;  // by rank
  bool is_waiting = true;  // false after the timeout for the other ranks has passed

  void host();
  void announce();
  // Reads the join requests of ranks that have not joined yet.
  void poll();
};

void Rendezvous::Impl::host() {
  const LaunchInfo& launch = options.launch;
  address.token = launch.is_one_host ? (options.token ? options.token->text : generate_token())
                                     : token_for_hosts(options);
  if (!options.store.empty()) {
    address = parse_store(options.store, address.token);
    return;
  }
  StoreServerOptions store_server_options{.token = address.token};
  if (!launch.is_one_host) store_server_options.interface = Listening::everywhere;
  // torchrun itself uses the port.
  if (!launch.is_one_host && !launch.has_torch_store) store_server_options.port = launch.master_port;
  server = std::make_unique<StoreServer>(store_server_options);
  address.port = server->port();
}

namespace {

// torchrun's store may be on a different host than rank 0. Returns this machine's address on the route to the
// store.
std::string address_towards(const LaunchInfo& launch) {
  const Outcome<Socket> connection = Socket::connect(launch.master_host, launch.master_port,
                                                     Deadline::after(Seconds(10), "torchrun's store"));
  const std::string local_address = connection ? connection->own_address() : "";
  return local_address.empty() || is_loopback(local_address) ? launch.master_host : local_address;
}

}  // namespace

void Rendezvous::Impl::announce() {
  const LaunchInfo& launch = options.launch;
  if (launch.is_one_host)
    file = std::make_unique<RendezvousFile>(rendezvous_file(process_environment(), launch.job),
                                            RendezvousAddress{address.port, address.token});
  else if (launch.has_torch_store && !address.is_etcd)
    options.torch.announce(launch.master_host, launch.master_port, torch_key(launch),
                           fmt::format("{}:{}", address_towards(launch), address.port));
}

void Rendezvous::Impl::poll() {
  for (int rank = 1; rank < options.launch.world_size; ++rank) {
    if (join_requests_by_rank.contains(rank)) continue;
    const auto stored = value_or_throw(store->find(join_request_key(rank)));
    if (stored) join_requests_by_rank[rank] = parse_rank_join_request(*stored);
  }
}

Rendezvous::Rendezvous(RendezvousOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  impl_->host();
  const Deadline deadline = Deadline::after(Seconds(10), "the store");
  impl_->store = value_or_throw(open_store(impl_->address, deadline));
  value_or_throw(impl_->store->clear());
  impl_->announce();
  impl_->join_requests_by_rank[0] = own_join_request(impl_->options.launch, *impl_->store);
}

Rendezvous::~Rendezvous() { (void)impl_->store->clear(); }

std::vector<PresentRank> Rendezvous::wait_for_others(
    const std::function<void(const std::string&)>& report_progress) {
  const int size = impl_->options.launch.world_size;
  const Deadline deadline = Deadline::after(impl_->options.timeout, "the other ranks");
  const Deadline report_missing_after = Deadline::after(Seconds(10), "the other ranks");
  const auto missing_text = [&] {
    std::vector<int> missing_ranks;
    for (int rank = 0; rank < size && missing_ranks.size() < 8; ++rank)
      if (!impl_->join_requests_by_rank.contains(rank)) missing_ranks.push_back(rank);
    return fmt::format("{} of {} ranks have joined; missing: {}{}", impl_->join_requests_by_rank.size(), size,
                       fmt::join(missing_ranks, ", "), missing_ranks.size() == 8 ? ", …" : "");
  };
  bool is_notified = false;
  for (int poll = 0;; ++poll) {
    impl_->poll();
    if (const auto lost_text = value_or_throw(impl_->store->find(kLostKey)))
      throw RuntimeFailure("{} before the run began", *lost_text);
    if (static_cast<int>(impl_->join_requests_by_rank.size()) == size) break;
    impl_->options.check_interrupted();
    impl_->is_waiting = !deadline.has_passed();
    if (!impl_->is_waiting)
      throw RuntimeFailure(
          "{}, after waiting for {}; check that the token is the same on all hosts and that they can reach "
          "{}",
          missing_text(), text(impl_->options.timeout), impl_->address.host);
    if (!is_notified && report_missing_after.has_passed())
      report_progress(missing_text()), is_notified = true;
    pause_before_query(poll);
  }
  std::vector<RankJoinRequest> join_requests;
  for (const auto& [rank, join_request] : impl_->join_requests_by_rank) join_requests.push_back(join_request);
  resolve_addresses(join_requests, impl_->address.is_etcd);
  std::vector<PresentRank> ranks;
  for (const RankJoinRequest& join_request : join_requests) ranks.push_back(join_request.rank);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    impl_->join_requests_by_rank[static_cast<int>(rank)].rank = ranks[rank];
  return ranks;
}

RendezvousResult Rendezvous::send_join_replies(const Json& settings) {
  RendezvousResult result{impl_->address, impl_->store, "run/" + impl_->session + "/", {}, settings};
  for (const auto& [rank, join_request] : impl_->join_requests_by_rank)
    result.ranks.push_back(join_request.rank);
  const Json answer = {
      {"prefix", result.prefix}, {"ranks", ranks_json(result.ranks)}, {"settings", settings}};
  // The settings are long, so they are stored only once, and each reply refers to them.
  value_or_throw(result.store->set(result.prefix + "settings", answer.dump()));
  for (const auto& [rank, join_request] : impl_->join_requests_by_rank)
    value_or_throw(
        result.store->set(join_reply_key(join_request.nonce), Json{{"prefix", result.prefix}}.dump()));
  return result;
}

void Rendezvous::refuse(const std::string& why) {
  const Deadline deadline = Deadline::after(kRefusalTimeout, "the other ranks");
  std::map<int, bool> is_notified;
  try {
    for (int poll = 0; !deadline.has_passed(); ++poll) {
      impl_->poll();
      for (const auto& [rank, join_request] : impl_->join_requests_by_rank)
        if (!is_notified[rank])
          is_notified[rank] =
              impl_->store->set(join_reply_key(join_request.nonce), Json{{"refused", why}}.dump())
                  .has_value();
      if (!impl_->is_waiting || std::ssize(impl_->join_requests_by_rank) == impl_->options.launch.world_size)
        break;
      impl_->options.check_interrupted();
      pause_before_query(poll);
    }
    // Gives the other ranks time to read the reply before the store is closed.
    for (int i = 0; i < 6; ++i) pause_before_query(6);
  } catch (...) {
    // The store is unreachable, or the user has interrupted the run. The other ranks detect this on their
    // own.
  }
}

namespace {

// The current address of rank 0's store, if it is known.
std::optional<StoreAddress> current_store_address(const RendezvousOptions& options) {
  const LaunchInfo& launch = options.launch;
  StoreAddress address;
  if (launch.is_one_host) {
    const auto file = read_rendezvous_file(rendezvous_file(process_environment(), launch.job));
    if (!file) return std::nullopt;
    address.port = file->port, address.token = file->token;
  } else {
    address.token = token_for_hosts(options);
    address.host = launch.master_host, address.port = launch.master_port;
  }
  if (!options.store.empty()) return parse_store(options.store, address.token);
  if (launch.is_one_host || !launch.has_torch_store) return address;
  const auto published = options.torch.poll(launch.master_host, launch.master_port, torch_key(launch));
  if (!published) return std::nullopt;
  std::tie(address.host, address.port) =
      parse_host_port(*published, "the address of rank 0 in torchrun's store");
  return address;
}

// Sends join requests until a reply arrives. Fails if the store fails, because rank 0 may then have a new
// address.
Outcome<std::string> wait_for_join_reply(const RendezvousOptions& options, KeyStore& store,
                                         const Deadline& deadline) {
  const RankJoinRequest join_request = own_join_request(options.launch, store);
  for (int poll = 0;; ++poll) {
    // The request is repeated periodically, because rank 0 removes keys that an earlier run left in etcd,
    // including requests that arrived too early.
    if (poll % static_cast<int>(kJoinRequestInterval / 0.05) == 0)
      if (const auto stored = store.set(join_request_key(options.launch.rank), text(join_request)); !stored)
        return tl::unexpected(stored.error());
    auto reply = store.find(join_reply_key(join_request.nonce));
    if (!reply) return tl::unexpected(reply.error());
    if (*reply) return std::move(**reply);
    if (deadline.has_passed()) return failure("rank 0 does not respond");
    options.check_interrupted();
    pause_before_query(poll);
  }
}

Outcome<void> read_join_reply(const RendezvousOptions& options, const std::string& reply,
                              RendezvousResult& result) {
  const Json json = parse_json(reply, "rank 0's reply");
  const JsonView view(json, "rank 0's reply");
  if (const auto refused = view.find("refused")) throw RankRefused{refused->text()};
  result.prefix = view.at("prefix").text();
  const auto settings = result.store->find(result.prefix + "settings");
  if (!settings || !*settings) return failure("rank 0's settings are missing");
  const Json document = parse_json(**settings, "rank 0's settings");
  const JsonView settings_view(document, "rank 0's settings");
  result.ranks = parse_present_ranks(settings_view.at("ranks")),
  result.settings = settings_view.at("settings").raw();
  if (static_cast<int>(result.ranks.size()) != options.launch.world_size)
    throw UserError("rank 0 reports {} ranks, but this rank expects {}", result.ranks.size(),
                    options.launch.world_size);
  return {};
}

// First registers a last-will, so that other ranks do not wait for this rank if it fails. Sets
// `was_reachable` when the store has responded.
Outcome<RendezvousResult> send_join_request(const RendezvousOptions& options, const StoreAddress& address,
                                            const Deadline& deadline, bool& was_reachable) {
  auto store = address.is_etcd ? open_etcd_store(address, deadline) : open_tcp_store(address, deadline);
  if (!store) return tl::unexpected(store.error());
  was_reachable = true;
  RendezvousResult result{address, std::move(*store), "", {}, {}};
  const int rank = options.launch.rank;
  const std::string will =
      fmt::format("rank {} (process {} on {}) has disconnected", rank, ::getpid(), host_name());
  if (const auto registered = result.store->set_last_will(kLostKey, will); !registered)
    return tl::unexpected(registered.error());
  const Outcome<std::string> answer = wait_for_join_reply(options, *result.store, deadline);
  const Outcome<void> outcome =
      answer ? read_join_reply(options, *answer, result) : Outcome<void>(tl::unexpected(answer.error()));
  if (!outcome) {
    (void)result.store->set_last_will("", "");  // removes the last-will, because this rank will try again
    return tl::unexpected(outcome.error());
  }
  value_or_throw(result.store->set_last_will(result.prefix + kEndedKey, will));
  return result;
}

}  // namespace

RendezvousResult join_rendezvous(const RendezvousOptions& options) {
  const Deadline deadline = Deadline::after(options.timeout, "rank 0");
  // The deadline for rank 0 to return after its store became unreachable.
  std::optional<Deadline> reconnect_deadline;
  std::string reason = "it has not published the address of its store";
  for (int poll = 0;; ++poll) {
    bool was_reachable = false;
    if (const auto address = current_store_address(options)) {
      auto joined = send_join_request(options, *address, deadline, was_reachable);
      if (joined) return std::move(*joined);
      reason = joined.error().why;
    }
    if (was_reachable)
      reconnect_deadline =
          Deadline::after(Seconds(std::min(kReconnectTimeout.value, options.timeout.value)), "rank 0");
    if (reconnect_deadline && reconnect_deadline->has_passed())
      throw RuntimeFailure("rank {}: lost the connection to rank 0: {}", options.launch.rank, reason);
    if (deadline.has_passed())
      throw RuntimeFailure("rank {} did not find rank 0 within {}: {}", options.launch.rank,
                           text(options.timeout), reason);
    options.check_interrupted();
    pause_before_query(poll);
  }
}

}  // namespace optimus
