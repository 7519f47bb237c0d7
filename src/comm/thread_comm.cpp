// Implements thread_comm.h. Ranks find a SharedOperation by key and index: the k-th collective of a group, or
// the k-th message between two ranks with the same tag.
#include "comm/thread_comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "comm/operation.h"
#include "comm/shared_operation.h"

namespace optimus {

// Identifies the participants: a group in an epoch, or a sender and a receiver with a tag.
struct SharedOperationKey {
  int generation = 0, epoch = 0, tag = -1;
  bool is_message = false;
  Group group;
  bool operator<(const SharedOperationKey& other) const {
    return std::tie(generation, epoch, tag, is_message, group.role, group.members) <
           std::tie(other.generation, other.epoch, other.tag, other.is_message, other.group.role,
                    other.group.members);
  }
  std::string text() const {
    if (!is_message) return group_text(group, epoch);
    return fmt::format("messages from rank {} to rank {} with tag {}, epoch {}", group.members[0],
                       group.members[1], tag, epoch);
  }
};

struct GroupState {
  std::string text;
  // Operations at which not all members have arrived yet, by index.
  std::map<std::int64_t, std::shared_ptr<SharedOperation>> open;
  std::optional<BreakReason> break_reason;  // if set, all further operations fail
};

struct ThreadWorldState {
  explicit ThreadWorldState(int size)
      : num_ranks(size), is_taken(static_cast<std::size_t>(size)), has_left(static_cast<std::size_t>(size)) {}

  const int num_ranks;
  std::mutex mutex;
  std::map<SharedOperationKey, GroupState> group_states;
  std::vector<bool> is_taken, has_left;        // [worker id]
  std::map<int, std::vector<int>> worker_ids;  // [generation][rank]: worker id; no entry for generation 0
  // [worker id]: the worker has left all generations before this one.
  std::map<int, int> generation_left_before;
  std::map<std::pair<int, int>, BreakReason> declined;  // (generation, epoch) pairs that a rank has declined
};

namespace {

BreakReason departure_reason(int rank) { return {fmt::format("rank {} has left", rank), {rank}}; }

// State shared by a rank's Comm and its operations. Protected by the world's lock.
struct RankState {
  std::optional<std::string> abandon_reason;
};

// Called with the world's lock held.
void break_group(GroupState& group_state, const BreakReason& break_reason) {
  if (!group_state.break_reason) group_state.break_reason = break_reason;
  for (auto& [number, shared_operation] : group_state.open) shared_operation->mark_broken(break_reason);
}

void break_operations_of(ThreadWorldState& world, int generation, int rank) {
  for (auto& [key, group_state] : world.group_states) {
    if (key.generation != generation || member_index_of(rank, key.group) < 0) continue;
    for (auto& [number, shared_operation] : group_state.open)
      if (!shared_operation->has_arrived(member_index_of(rank, key.group)))
        shared_operation->mark_broken(departure_reason(rank));
  }
}

class ThreadPending final : public Pending {
 public:
  struct Info {
    std::shared_ptr<ThreadWorldState> world;
    std::shared_ptr<RankState> rank;
    std::shared_ptr<SharedOperation> shared_operation;
    SharedOperationKey key;
    int member_index = 0;
    FlightLog* log = nullptr;
    std::int64_t log_number = 0;
    std::string operation;
  };
  explicit ThreadPending(Info info) : info_(std::move(info)) {}

  bool is_done() override {
    if (outcome_) return true;
    std::unique_lock lock(info_.world->mutex);
    while (run_one_part(lock)) {
    }
    return has_failed() || (info_.shared_operation->is_done() && info_.shared_operation->is_passed());
  }

  CommOutcome<void> wait(const Deadline& deadline) override {
    if (!outcome_) {
      outcome_ = wait_for_outcome(deadline);
      info_.log->end(info_.log_number, *outcome_ ? FlightState::done : FlightState::failed);
    }
    return *outcome_;
  }

 private:
  bool has_failed() const { return info_.rank->abandon_reason || info_.shared_operation->break_reason(); }

  bool run_one_part(std::unique_lock<std::mutex>& lock) {
    if (info_.rank->abandon_reason) return false;
    const std::optional<std::size_t> part = info_.shared_operation->claim_part();
    if (!part) return false;
    lock.unlock();
    StreamMark mark = info_.shared_operation->run_part(*part);
    lock.lock();
    info_.shared_operation->finish_part(*part, std::move(mark));
    return true;
  }

  CommOutcome<void> wait_for_outcome(const Deadline& deadline) {
    const auto begin_time = Deadline::Clock::now();
    std::unique_lock lock(info_.world->mutex);
    SharedOperation& shared_operation = *info_.shared_operation;
    while (!shared_operation.is_done() && !has_failed()) {
      if (run_one_part(lock)) continue;
      if (shared_operation.is_complete()) {
        shared_operation.changed.wait(lock);  // other members are working on parts, which never block
      } else if (deadline.has_passed()) {
        give_up(deadline_text(deadline), begin_time);
      } else {
        shared_operation.changed.wait_until(lock, deadline.end());
      }
    }
    // A member that is running a part still accesses this rank's memory. Parts never block.
    shared_operation.changed.wait(lock, [&] { return !shared_operation.is_in_progress(); });
    if (!shared_operation.is_done()) return tl::unexpected(failure_since(begin_time));
    shared_operation.await_work(info_.member_index);
    shared_operation.release(info_.member_index);
    return {};
  }

  // The group can no longer be used, because its members would disagree about which operations have
  // completed.
  void give_up(const std::string& reason, Deadline::Clock::time_point begin_time) {
    const double waited = std::chrono::duration<double>(Deadline::Clock::now() - begin_time).count();
    const std::vector<int> missing = info_.shared_operation->missing();
    info_.shared_operation->mark_broken({reason, missing});
    const int rank = info_.key.group.members[static_cast<std::size_t>(info_.member_index)];
    break_group(
        info_.world->group_states[info_.key],
        {fmt::format("rank {}: {} timed out after {:.3g} s", rank, info_.operation, waited), missing});
  }

  CommFailure failure_since(Deadline::Clock::time_point begin_time) const {
    const double waited = std::chrono::duration<double>(Deadline::Clock::now() - begin_time).count();
    if (info_.rank->abandon_reason)
      return {info_.operation, info_.key.text(), info_.shared_operation->missing(), Seconds(waited),
              *info_.rank->abandon_reason};
    const BreakReason break_reason = info_.shared_operation->break_reason().value_or(BreakReason{});
    return {info_.operation, info_.key.text(), break_reason.missing, Seconds(waited), break_reason.reason};
  }

  const Info info_;
  std::optional<CommOutcome<void>> outcome_;
};

class ThreadComm final : public Comm {
 public:
  ThreadComm(std::shared_ptr<ThreadWorldState> world, int worker_id)
      : world_(std::move(world)),
        worker_id_(worker_id),
        rank_(worker_id),
        size_(world_->num_ranks),
        log_(worker_id),
        state_(std::make_shared<RankState>()) {}

  ~ThreadComm() override {
    const std::lock_guard lock(world_->mutex);
    world_->has_left[static_cast<std::size_t>(worker_id_)] = true;
    break_operations_of(*world_, generation_, rank_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  // Operations of the previous generation that still wait for this rank fail.
  void change_membership(const Membership& membership) override {
    const std::lock_guard lock(world_->mutex);
    break_operations_of(*world_, generation_, rank_);
    const auto member_index =
        std::find(membership.worker_ids.begin(), membership.worker_ids.end(), worker_id_);
    ensure(member_index != membership.worker_ids.end() && membership.generation > generation_,
           "worker {} cannot join generation {} after generation {}", worker_id_, membership.generation,
           generation_);
    world_->generation_left_before[worker_id_] = generation_ = membership.generation;
    world_->worker_ids[generation_] = membership.worker_ids;
    rank_ = static_cast<int>(member_index - membership.worker_ids.begin());
    size_ = static_cast<int>(membership.worker_ids.size());
    epoch_ = 0, connected_.clear(), num_started_.clear();
    state_ = std::make_shared<RankState>();
  }

  void shrink(int size) override { size_ = size; }

  CommOutcome<void> connect(int epoch, std::span<const Group> groups, const Deadline& deadline) override {
    epoch_ = epoch;
    return prepare(epoch, groups, deadline);
  }

  CommOutcome<void> prepare(int epoch, std::span<const Group> groups, const Deadline& deadline) override {
    for (const Group& group : own_groups(groups, rank_, size())) {
      if (is_connected({epoch, group})) continue;
      const auto connected =
          start({.generation = generation_, .epoch = epoch, .group = group}, {.description = "a group"})
              ->wait(deadline);
      if (!connected) return connected;
      const std::lock_guard lock(world_->mutex);
      connected_.insert({epoch, group});
    }
    return {};
  }

  void decline(int epoch, const std::string& reason) override {
    const std::lock_guard lock(world_->mutex);
    const BreakReason break_reason{fmt::format("rank {} declined to connect: {}", rank_, reason), {rank_}};
    world_->declined.emplace(std::pair(generation_, epoch), break_reason);
    for (auto& [key, group_state] : world_->group_states)
      if (key.generation == generation_ && key.epoch == epoch) break_group(group_state, break_reason);
  }

  void drop(int epoch) override {
    const std::lock_guard lock(world_->mutex);
    std::erase_if(connected_, [&](const Connected& group) { return group.epoch == epoch; });
  }

  void abandon(const std::string& reason) override {
    const std::lock_guard lock(world_->mutex);
    if (!state_->abandon_reason) state_->abandon_reason = reason;
    for (auto& [key, group_state] : world_->group_states)
      for (auto& [number, shared_operation] : group_state.open) shared_operation->changed.notify_all();
  }

  std::unique_ptr<Pending> all_reduce(const Group& group, at::Tensor tensor, ReduceOp kind,
                                      std::string_view description) override {
    return collective(group, all_reduce_operation(std::move(tensor), kind, description));
  }
  std::unique_ptr<Pending> all_gather(const Group& group, at::Tensor from, at::Tensor to,
                                      std::string_view description) override {
    return collective(group,
                      all_gather_operation(std::move(from), std::move(to), num_members(group), description));
  }
  std::unique_ptr<Pending> reduce_scatter(const Group& group, at::Tensor from, at::Tensor to,
                                          std::string_view description) override {
    return collective(
        group, reduce_scatter_operation(std::move(from), std::move(to), num_members(group), description));
  }
  std::unique_ptr<Pending> broadcast(const Group& group, at::Tensor tensor, int root,
                                     std::string_view description) override {
    const int member_index = member_index_of(root, with_members(group, size()));
    return collective(group, broadcast_operation(std::move(tensor), member_index, description));
  }
  std::unique_ptr<Pending> send(int peer, at::Tensor tensor, int tag, std::string_view description) override {
    return send_ahead(epoch_, peer, std::move(tensor), tag, description);
  }
  std::unique_ptr<Pending> receive(int peer, at::Tensor tensor, int tag,
                                   std::string_view description) override {
    return receive_ahead(epoch_, peer, std::move(tensor), tag, description);
  }
  std::unique_ptr<Pending> send_ahead(int epoch, int peer, at::Tensor tensor, int tag,
                                      std::string_view description) override {
    return message(epoch, {rank_, peer}, tag,
                   message_operation(CommKind::send, std::move(tensor), description));
  }
  std::unique_ptr<Pending> receive_ahead(int epoch, int peer, at::Tensor tensor, int tag,
                                         std::string_view description) override {
    return message(epoch, {peer, rank_}, tag,
                   message_operation(CommKind::receive, std::move(tensor), description));
  }

  const FlightLog& flight_log() const override { return log_; }

 private:
  struct Connected {
    int epoch = 0;
    Group group;
    bool operator<(const Connected& other) const {
      return epoch != other.epoch ? epoch < other.epoch : is_ordered_before(group, other.group);
    }
  };

  int num_members(const Group& group) const {
    return static_cast<int>(with_members(group, size()).members.size());
  }

  bool is_connected(const Connected& group) const {
    const std::lock_guard lock(world_->mutex);
    return connected_.contains(group);
  }

  std::unique_ptr<Pending> collective(const Group& group, CommOperation operation) {
    const Group full_group = with_members(group, size());
    ensure(is_connected({epoch_, full_group}), "rank {}: {} is not connected", rank_,
           group_text(full_group, epoch_));
    return start({.generation = generation_, .epoch = epoch_, .group = full_group}, std::move(operation));
  }

  std::unique_ptr<Pending> message(int epoch, std::vector<int> endpoints, int tag, CommOperation operation) {
    ensure(endpoints[0] != endpoints[1] && std::min(endpoints[0], endpoints[1]) >= 0 &&
               std::max(endpoints[0], endpoints[1]) < size(),
           "invalid message from rank {} to rank {} in a world of {} ranks", endpoints[0], endpoints[1],
           size());
    return start({.generation = generation_,
                  .epoch = epoch,
                  .tag = tag,
                  .is_message = true,
                  .group = {Role::world, std::move(endpoints)}},
                 std::move(operation));
  }

  // Returns whether a rank of this generation has moved to a later generation or has left the world. Called
  // with the world's lock held.
  bool has_departed(int rank) const {
    const auto worker_ids = world_->worker_ids.find(generation_);
    const int worker_id =
        worker_ids == world_->worker_ids.end() ? rank : worker_ids->second[static_cast<std::size_t>(rank)];
    const auto later = world_->generation_left_before.find(worker_id);
    return world_->has_left[static_cast<std::size_t>(worker_id)] ||
           (later != world_->generation_left_before.end() && later->second > generation_);
  }

  std::unique_ptr<Pending> start(SharedOperationKey key, CommOperation operation) {
    std::string text = operation.text();
    const std::int64_t log_number =
        log_.post(name(operation.kind), operation.description, key.text(), operation.bytes());
    const int member_index = member_index_of(rank_, key.group);
    const std::lock_guard lock(world_->mutex);
    const std::int64_t number = num_started_[key]++;
    GroupState& group_state = world_->group_states[key];
    std::shared_ptr<SharedOperation>& open = group_state.open[number];
    if (open == nullptr) open = std::make_shared<SharedOperation>(key.group.members);
    const std::shared_ptr<SharedOperation> shared_operation = open;
    if (group_state.break_reason) shared_operation->mark_broken(*group_state.break_reason);
    if (const auto declined = world_->declined.find({key.generation, key.epoch});
        declined != world_->declined.end())
      shared_operation->mark_broken(declined->second);
    shared_operation->submit(member_index, std::move(operation));
    for (const int member : shared_operation->missing())
      if (has_departed(member)) shared_operation->mark_broken(departure_reason(member));
    if (shared_operation->break_reason() && !group_state.break_reason)
      break_group(group_state, *shared_operation->break_reason());
    if (shared_operation->is_complete()) group_state.open.erase(number);
    return std::make_unique<ThreadPending>(ThreadPending::Info{
        world_, state_, shared_operation, std::move(key), member_index, &log_, log_number, std::move(text)});
  }

  const std::shared_ptr<ThreadWorldState> world_;
  const int worker_id_;
  int rank_, size_;
  FlightLog log_;
  std::shared_ptr<RankState> state_;
  int generation_ = 0, epoch_ = 0;
  // Protected by the world's lock, because another thread may call prepare().
  std::set<Connected> connected_;
  std::map<SharedOperationKey, std::int64_t> num_started_;
};

}  // namespace

ThreadWorld::ThreadWorld(int num_ranks) : state_(std::make_shared<ThreadWorldState>(num_ranks)) {
  ensure(num_ranks > 0, "a world needs at least one rank, got {}", num_ranks);
}

ThreadWorld::~ThreadWorld() = default;

int ThreadWorld::size() const { return state_->num_ranks; }

std::unique_ptr<Comm> ThreadWorld::comm(int rank) {
  ensure(rank >= 0 && rank < size(), "rank {} is not in a world of {} ranks", rank, size());
  const std::lock_guard lock(state_->mutex);
  ensure(!state_->is_taken[static_cast<std::size_t>(rank)], "the Comm of rank {} was already created", rank);
  state_->is_taken[static_cast<std::size_t>(rank)] = true;
  return std::make_unique<ThreadComm>(state_, rank);
}

}  // namespace optimus
