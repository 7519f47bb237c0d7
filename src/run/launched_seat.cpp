// Implements LaunchedSeat.
#include "run/launched_seat.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "base/time_stamp.h"
#include "elastic/pulse.h"
#include "rundir/store_board.h"

namespace optimus {
namespace {

// the number of standby stores that a rank knows: as many hosts may be lost one after the other
constexpr std::size_t kMostStandbys = 8;
constexpr Seconds kReachPatience{1};   // to connect to the host of a store that may be down
constexpr Seconds kAnswerPatience{4};  // for a store whose host answers: its process may get little CPU time
constexpr Seconds kStandbyPatience{0.5};  // for the others to publish the addresses of their stores
constexpr Seconds kEndPatience{120};      // for the others to end after the last step

}  // namespace

LaunchedSeat::LaunchedSeat(LaunchedSeatFacts facts)
    : facts_(std::move(facts)),
      store_(std::make_shared<MovableStore>(facts_.store)),
      seats_(facts_.seats),
      last_(facts_.order) {
  if (facts_.where.place.is_etcd) return;  // etcd outlives every rank
  standby_ = std::make_unique<StoreServer>(
      StoreServerOptions{.token = facts_.where.place.token,
                         .where = facts_.is_one_host ? Listening::on_loopback : Listening::everywhere});
}

LaunchedSeat::~LaunchedSeat() = default;

std::string LaunchedSeat::own_standby() const {
  return fmt::format("{}:{}", facts_.is_one_host ? "127.0.0.1" : facts_.address, standby_->port());
}

const RankElastic* LaunchedSeat::begin(Comm& comm, StatusLine& line) {
  const std::string& prefix = facts_.where.prefix;
  if (standby_ != nullptr) (void)store_->set(prefix + standby_key(facts_.seat), own_standby());
  (void)store_->set_will(prefix + gone_key(facts_.seat), kEnded);
  watch_ = std::make_unique<RankWatch>(store_, prefix, comm, facts_.seat,
                                       facts_.order ? facts_.order->membership.generation : 0);
  elastic_ = {.seat = facts_.seat,
              .leaves = facts_.signals.is_told_to_leave,
              .wants_to_meet =
                  [this] {
                    learn_standbys();
                    return watch_->wants_to_meet() || facts_.signals.is_told_to_leave();
                  },
              .regrouped = [this](const RegroupOrder& order) { regrouped(order); },
              .speak_to_people = [&line] { line.speak_to_people(); },
              .beacon = watch_->beacon(),
              .order = facts_.order};
  return &elastic_;
}

// Called while the run's store is reachable. Returns true if this rank knows all the standby stores that it
// needs.
bool LaunchedSeat::learn_standbys() {
  bool knows_all = true;
  for (std::size_t i = 0; i < std::min(kMostStandbys, seats_.size()); ++i) {
    if (standbys_.contains(seats_[i])) continue;
    const auto said = store_->find(facts_.where.prefix + standby_key(seats_[i]));
    if (said && *said)
      standbys_[seats_[i]] = **said;
    else
      knows_all = false;
  }
  return knows_all;
}

void LaunchedSeat::regrouped(const RegroupOrder& order) {
  watch_->regrouped(order.membership);
  last_ = order;
  seats_.assign(order.membership.seats.begin(), order.membership.seats.begin() + order.num_staying);
  // The store may have moved.
  if (standby_ != nullptr) (void)store_->set(facts_.where.prefix + standby_key(facts_.seat), own_standby());
  (void)store_->set_will(facts_.where.prefix + gone_key(facts_.seat), kEnded);
  // All ranks get here at about the same time. A rank that does not know the standby stores when this store
  // is lost would host the run alone.
  const Deadline deadline = Deadline::after(kStandbyPatience, "the other ranks' standby stores");
  while (standby_ != nullptr && !learn_standbys() && !deadline.has_passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

void LaunchedSeat::host() {
  board_ = std::make_unique<StoreBoard>(store_, facts_.where.prefix);
  RunHostFacts host = facts_.host_facts(last_);
  host.last = last_;
  StorePlace place = facts_.where.place;
  if (!place.is_etcd && !facts_.is_one_host)  // the address by which other hosts reach it
    place.host = facts_.address;
  if (has_taken_over_) place.port = standby_->port();
  const auto let_others_join = [this, place] {
    if (joining_ != nullptr) return;
    joining_ = std::make_unique<StoreFile>(facts_.folder, RunStorePlace{place, facts_.where.prefix, true});
  };
  if (!has_taken_over_) let_others_join();
  // Several processes that do not see each other may take over. The one that may continue the run owns it.
  host.regrouping.done = [this, let_others_join, done = host.regrouping.done](
                             const RegroupOrder& order, const std::vector<WorkerEntry>& members) {
    let_others_join();
    take_lock();
    if (done) done(order, members);
  };
  host_ = std::make_unique<RunHost>(*board_, files_, std::move(host));
}

// The previous host may only be cut off from the network, and keep the lock for a while.
void LaunchedSeat::take_lock() {
  if (!has_taken_over_ || lock_.is_held()) return;
  try {
    lock_ = FolderLock::take(facts_.folder);
  } catch (const UserError&) {
  }
}

// Called when no worker before this one in the list can be reached.
void LaunchedSeat::take_over(const std::map<int, std::string>& unreached) {
  fmt::print(stderr, "{}the host of the run's store is lost: this process hosts it from now on\n",
             time_stamp());
  has_taken_over_ = true;
  take_lock();
  auto own = open_store({.port = standby_->port(), .token = facts_.where.place.token},
                        Deadline::after(Seconds(10), "this process's own store"));
  store_->move_to(value_or_throw(std::move(own)));
  for (const auto& [seat, how] : unreached) (void)store_->set(facts_.where.prefix + gone_key(seat), how);
  host();
}

bool LaunchedSeat::find_store() {
  if (store_->find(facts_.where.prefix + pulse_key(facts_.seat))) return true;
  std::map<int, std::string> unreached;
  for (const int seat : seats_) {
    if (seat == facts_.seat) {
      if (host_ != nullptr || standby_ == nullptr) return false;
      take_over(unreached);
      return true;
    }
    unreached[seat] = "";
    const auto known = standbys_.find(seat);
    if (known == standbys_.end()) {
      fmt::print(stderr, "{}worker {}: the address of its standby store is unknown\n", time_stamp(), seat);
      continue;
    }
    const std::vector<std::string> words = split(known->second, ':');
    if (words.size() != 2) continue;
    StorePlace place{.host = words[0], .port = std::stoi(words[1]), .token = facts_.where.place.token};
    auto found = open_tcp_store(place, Deadline::after(kReachPatience, "the host of a standby store"),
                                Deadline::after(kAnswerPatience, "a standby store"));
    if (!found) {
      fmt::print(stderr, "{}worker {}: {}\n", time_stamp(), seat, found.error().why);
      // The machine answers, but no process listens on the port any more.
      if (found.error().why.find(std::strerror(ECONNREFUSED)) != std::string::npos) unreached[seat] = kEnded;
      continue;
    }
    store_->move_to(std::move(*found));
    return true;
  }
  return false;
}

std::unique_ptr<Board> LaunchedSeat::open_board() {
  try {
    if (!find_store()) return nullptr;
  } catch (const UserError& error) {
    fmt::print(stderr, "{}{}\n", time_stamp(), error.what());
    return nullptr;
  }
  return std::make_unique<StoreBoard>(store_, facts_.where.prefix);
}

// If the host has left and the run has ended before another process took over, the store file has to be
// removed here.
void LaunchedSeat::clear_after_host() {
  if (!last_ || seats_.empty() || seats_.front() != facts_.seat) return;
  if (!store_->find(facts_.where.prefix + pulse_key(facts_.seat))) remove_store_file(facts_.folder);
}

void LaunchedSeat::stay_for_others(const std::function<bool()>& is_interrupted) {
  if (host_ == nullptr) return clear_after_host();
  const Deadline deadline = Deadline::after(kEndPatience, "the other ranks to end");
  for (int look = 0; !deadline.has_passed() && !host_->have_all_ended(); ++look) {
    if (look > 10 && is_interrupted()) break;
    pause_before_look(look);
  }
  host_->end();
  if (!host_->have_all_ended() && facts_.signals.is_told_to_leave() && joining_ != nullptr) joining_->leave();
}

}  // namespace optimus
