// Implements elastic_rank.h.
#include "run/elastic_rank.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "base/time_stamp.h"
#include "elastic/heartbeat.h"
#include "rundir/store_board.h"

namespace optimus {
namespace {

// Number of standby stores that a rank knows. This many hosts may be lost one after the other.
constexpr std::size_t kMaxStandbys = 8;
constexpr Seconds kOpenTimeout{30};
constexpr Seconds kReachTimeout{1};  // for connecting to a store whose host may be down
// For a store whose host is up but whose process may have little CPU time.
constexpr Seconds kAnswerTimeout{4};
constexpr Seconds kStandbyTimeout{0.5};  // for other ranks to publish the addresses of their stores
constexpr Seconds kEndTimeout{120};      // for other ranks to exit after the last step

}  // namespace

HostedElasticRank::HostedElasticRank(const RunStoreAddress& store_address, Comm& comm, int worker_id,
                                     std::optional<MembershipChange> first_order)
    : worker_id_(worker_id),
      first_order_(std::move(first_order)),
      watch_(
          value_or_throw(open_store(store_address.address, Deadline::after(kOpenTimeout, "the run's store"))),
          store_address.prefix, comm, worker_id, first_order_ ? first_order_->membership.generation : 0) {}

LaunchedElasticRank::LaunchedElasticRank(LaunchedRankFacts facts)
    : facts_(std::move(facts)),
      store_(std::make_shared<MovableStore>(facts_.store)),
      worker_ids_(facts_.worker_ids),
      last_change_(facts_.order) {
  if (facts_.store_address.address.is_etcd) return;  // etcd outlives every rank
  standby_store_ = std::make_unique<StoreServer>(
      StoreServerOptions{.token = facts_.store_address.address.token,
                         .interface = facts_.is_one_host ? Listening::on_loopback : Listening::everywhere});
}

LaunchedElasticRank::~LaunchedElasticRank() = default;

std::string LaunchedElasticRank::own_standby_address() const {
  return fmt::format("{}:{}", facts_.is_one_host ? "127.0.0.1" : facts_.address, standby_store_->port());
}

void LaunchedElasticRank::begin(Comm& comm) {
  const std::string& prefix = facts_.store_address.prefix;
  if (standby_store_ != nullptr)
    (void)store_->set(prefix + standby_key(facts_.worker_id), own_standby_address());
  (void)store_->set_last_will(prefix + lost_key(facts_.worker_id), kEnded);
  watch_ = std::make_unique<RankWatch>(store_, prefix, comm, facts_.worker_id,
                                       facts_.order ? facts_.order->membership.generation : 0);
}

bool LaunchedElasticRank::wants_membership_change() {
  read_standby_addresses();
  return watch_->wants_membership_change();
}

// Called while the run's store is reachable. Returns whether this rank knows all standby stores that it
// needs.
bool LaunchedElasticRank::read_standby_addresses() {
  bool knows_all_stores = true;
  for (std::size_t i = 0; i < std::min(kMaxStandbys, worker_ids_.size()); ++i) {
    if (standby_addresses_.contains(worker_ids_[i])) continue;
    const auto published = store_->find(facts_.store_address.prefix + standby_key(worker_ids_[i]));
    if (published && *published)
      standby_addresses_[worker_ids_[i]] = **published;
    else
      knows_all_stores = false;
  }
  return knows_all_stores;
}

void LaunchedElasticRank::membership_changed(const MembershipChange& order) {
  watch_->membership_changed(order.membership);
  last_change_ = order;
  worker_ids_.assign(order.membership.worker_ids.begin(),
                     order.membership.worker_ids.begin() + order.num_staying);
  // Published again, because the store may have moved.
  if (standby_store_ != nullptr)
    (void)store_->set(facts_.store_address.prefix + standby_key(facts_.worker_id), own_standby_address());
  (void)store_->set_last_will(facts_.store_address.prefix + lost_key(facts_.worker_id), kEnded);
  // All ranks call this at about the same time. If the store were lost now, a rank that does not know the
  // standby stores would start to host a separate run.
  const Deadline deadline = Deadline::after(kStandbyTimeout, "the other ranks' standby stores");
  while (standby_store_ != nullptr && !read_standby_addresses() && !deadline.has_passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

void LaunchedElasticRank::host() {
  board_ = std::make_unique<StoreBoard>(store_, facts_.store_address.prefix);
  RunHostOptions host = facts_.host_facts(last_change_);
  host.last_change = last_change_;
  StoreAddress address = facts_.store_address.address;
  if (!address.is_etcd && !facts_.is_one_host)  // the address at which other hosts can reach the store
    address.host = facts_.address;
  if (is_new_host_) address.port = standby_store_->port();
  const auto allow_joining = [this, address] {
    if (store_file_ != nullptr) return;
    store_file_ = std::make_unique<StoreFile>(facts_.folder,
                                              RunStoreAddress{address, facts_.store_address.prefix, true});
  };
  if (!is_new_host_) allow_joining();
  // Several processes that cannot reach each other may take over as host. Only the process whose order is
  // accepted owns the run and its files.
  host.coordinator.on_change_done = [this, allow_joining, done = host.coordinator.on_change_done](
                                        const MembershipChange& order,
                                        const std::vector<WorkerEntry>& members) {
    allow_joining();
    take_lock();
    if (done) done(order, members);
  };
  host_ = std::make_unique<RunHost>(*board_, files_, std::move(host));
}

// The previous host may merely be cut off from the network and may keep the lock for a while.
void LaunchedElasticRank::take_lock() {
  if (!is_new_host_ || lock_.is_held()) return;
  try {
    lock_ = FolderLock::take(facts_.folder);
  } catch (const ReportedError&) {
  }
}

// Called if no worker that precedes this one in the list can be reached.
void LaunchedElasticRank::take_over(const std::map<int, std::string>& unreached) {
  fmt::print(stderr, "{}the host of the run's store was lost; this process now hosts the store\n",
             time_stamp());
  is_new_host_ = true;
  take_lock();
  auto own_store = open_store({.port = standby_store_->port(), .token = facts_.store_address.address.token},
                              Deadline::after(Seconds(10), "this process's own store"));
  store_->move_to(value_or_throw(std::move(own_store)));
  for (const auto& [worker_id, end_kind] : unreached)
    (void)store_->set(facts_.store_address.prefix + lost_key(worker_id), end_kind);
  host();
}

bool LaunchedElasticRank::find_store() {
  if (store_->find(facts_.store_address.prefix + heartbeat_key(facts_.worker_id))) return true;
  std::map<int, std::string> unreached;
  for (const int worker_id : worker_ids_) {
    if (worker_id == facts_.worker_id) {
      if (host_ != nullptr || standby_store_ == nullptr) return false;
      take_over(unreached);
      return true;
    }
    unreached[worker_id] = "";
    const auto standby = standby_addresses_.find(worker_id);
    if (standby == standby_addresses_.end()) {
      fmt::print(stderr, "{}worker {}: the address of its standby store is unknown\n", time_stamp(),
                 worker_id);
      continue;
    }
    const std::vector<std::string> words = split(standby->second, ':');
    if (words.size() != 2) continue;
    StoreAddress address{
        .host = words[0], .port = std::stoi(words[1]), .token = facts_.store_address.address.token};
    auto store = open_tcp_store(address, Deadline::after(kReachTimeout, "the host of a standby store"),
                                Deadline::after(kAnswerTimeout, "a standby store"));
    if (!store) {
      fmt::print(stderr, "{}worker {}: {}\n", time_stamp(), worker_id, store.error().why);
      // The machine responds, but no process listens on the port any longer.
      if (store.error().why.find(std::strerror(ECONNREFUSED)) != std::string::npos)
        unreached[worker_id] = kEnded;
      continue;
    }
    store_->move_to(std::move(*store));
    return true;
  }
  return false;
}

std::unique_ptr<Board> LaunchedElasticRank::open_board() {
  try {
    if (!find_store()) return nullptr;
  } catch (const ReportedError& error) {
    fmt::print(stderr, "{}{}\n", time_stamp(), error.what());
    return nullptr;
  }
  return std::make_unique<StoreBoard>(store_, facts_.store_address.prefix);
}

// If the host left and the run ended before another process took over, the store file must be removed here.
void LaunchedElasticRank::remove_stale_store_file() {
  if (!last_change_ || worker_ids_.empty() || worker_ids_.front() != facts_.worker_id) return;
  if (!store_->find(facts_.store_address.prefix + heartbeat_key(facts_.worker_id)))
    remove_store_file(facts_.folder);
}

void LaunchedElasticRank::wait_for_others_to_end() {
  if (host_ == nullptr) return remove_stale_store_file();
  const Deadline deadline = Deadline::after(kEndTimeout, "the other ranks to end");
  for (int num_queries = 0; !deadline.has_passed() && !host_->have_all_ended(); ++num_queries) {
    if (num_queries > 10 && facts_.stop.is_requested()) break;
    pause_before_query(num_queries);
  }
  host_->end();
  if (!host_->have_all_ended() && facts_.stop.is_leave_requested() && store_file_ != nullptr)
    store_file_->release();
}

}  // namespace optimus
