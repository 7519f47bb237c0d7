// Implements thread_comm.h. Ranks find each other by key and number: the k-th operation of a group is one
// Meeting, the k-th message between two ranks with a tag is another.
#include "comm/thread_comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "comm/meeting.h"
#include "comm/operation.h"

namespace optimus {

// Identifies the participants: a group in an epoch, or a sender and a receiver with a tag.
struct MeetingKey {
  int generation = 0, epoch = 0, tag = -1;
  bool is_message = false;
  Group group;
  bool operator<(const MeetingKey& other) const {
    return std::tie(generation, epoch, tag, is_message, group.role, group.members) <
           std::tie(other.generation, other.epoch, other.tag, other.is_message, other.group.role,
                    other.group.members);
  }
  std::string text() const {
    if (!is_message) return group_text(group, epoch);
    return fmt::format("messages {} to {} with tag {}, epoch {}", group.members[0], group.members[1], tag,
                       epoch);
  }
};

struct Gathering {
  std::string text;
  std::map<std::int64_t, std::shared_ptr<Meeting>> open;  // by number; until all members have arrived
  std::optional<Breach> broken;                           // set: all further operations fail
};

struct ThreadWorldState {
  explicit ThreadWorldState(int size)
      : num_ranks(size), is_taken(static_cast<std::size_t>(size)), has_left(static_cast<std::size_t>(size)) {}

  const int num_ranks;
  std::mutex mutex;
  std::map<MeetingKey, Gathering> gatherings;
  std::vector<bool> is_taken, has_left;   // [worker id]
  std::map<int, std::vector<int>> seats;  // [generation]: worker ids of its ranks; no entry for generation 0
  std::map<int, int> left_generations;    // [worker id]: it has left all generations before this one
  std::map<std::pair<int, int>, Breach> declined;  // (generation, epoch) pairs that a rank has declined
};

namespace {

Breach left(int rank) { return {fmt::format("rank {} has left", rank), {rank}}; }

// State that a rank's operations and its Comm share; protected by the world's lock.
struct RankState {
  std::optional<std::string> abandoned;
};

// Called with the world's lock held.
void break_gathering(Gathering& gathering, const Breach& breach) {
  if (!gathering.broken) gathering.broken = breach;
  for (auto& [number, meeting] : gathering.open) meeting->break_off(breach);
}

void break_meetings_of(ThreadWorldState& world, int generation, int rank) {
  for (auto& [key, gathering] : world.gatherings) {
    if (key.generation != generation || place_of(rank, key.group) < 0) continue;
    for (auto& [number, meeting] : gathering.open)
      if (!meeting->has_come(place_of(rank, key.group))) meeting->break_off(left(rank));
  }
}

class ThreadPending final : public Pending {
 public:
  struct Facts {
    std::shared_ptr<ThreadWorldState> world;
    std::shared_ptr<RankState> rank;
    std::shared_ptr<Meeting> meeting;
    MeetingKey key;
    int place = 0;
    FlightLog* log = nullptr;
    std::int64_t number = 0;
    std::string operation;
  };
  explicit ThreadPending(Facts facts) : f_(std::move(facts)) {}

  bool is_done() override {
    if (outcome_) return true;
    std::unique_lock lock(f_.world->mutex);
    while (work_on_a_part(lock)) {
    }
    return has_failed() || (f_.meeting->is_done() && f_.meeting->is_passed());
  }

  CommOutcome<void> wait(const Deadline& deadline) override {
    if (!outcome_) {
      outcome_ = wait_once(deadline);
      f_.log->end(f_.number, *outcome_ ? FlightState::done : FlightState::failed);
    }
    return *outcome_;
  }

 private:
  bool has_failed() const { return f_.rank->abandoned || f_.meeting->broken(); }

  bool work_on_a_part(std::unique_lock<std::mutex>& lock) {
    if (f_.rank->abandoned) return false;
    const std::optional<std::size_t> part = f_.meeting->take_part();
    if (!part) return false;
    lock.unlock();
    StreamMark mark = f_.meeting->do_part(*part);
    lock.lock();
    f_.meeting->end_part(*part, std::move(mark));
    return true;
  }

  CommOutcome<void> wait_once(const Deadline& deadline) {
    const auto began = Deadline::Clock::now();
    std::unique_lock lock(f_.world->mutex);
    Meeting& meeting = *f_.meeting;
    while (!meeting.is_done() && !has_failed()) {
      if (work_on_a_part(lock)) continue;
      if (meeting.is_complete()) {
        meeting.changed.wait(lock);  // other members are working, and parts never block
      } else if (deadline.has_passed()) {
        give_up(deadline_text(deadline), began);
      } else {
        meeting.changed.wait_until(lock, deadline.end());
      }
    }
    // Another member in the middle of a part still accesses this rank's memory. Parts never block.
    meeting.changed.wait(lock, [&] { return !meeting.is_being_worked_on(); });
    if (!meeting.is_done()) return tl::unexpected(failure_since(began));
    meeting.await_work(f_.place);
    meeting.release(f_.place);
    return {};
  }

  // The group cannot be used any more: its members would disagree about what has happened in it.
  void give_up(const std::string& reason, Deadline::Clock::time_point began) {
    const double waited = std::chrono::duration<double>(Deadline::Clock::now() - began).count();
    const std::vector<int> missing = f_.meeting->missing();
    f_.meeting->break_off({reason, missing});
    const int rank = f_.key.group.members[static_cast<std::size_t>(f_.place)];
    break_gathering(
        f_.world->gatherings[f_.key],
        {fmt::format("rank {} gave up on {} after {:.3g} s", rank, f_.operation, waited), missing});
  }

  CommFailure failure_since(Deadline::Clock::time_point began) const {
    const double waited = std::chrono::duration<double>(Deadline::Clock::now() - began).count();
    if (f_.rank->abandoned)
      return {f_.operation, f_.key.text(), f_.meeting->missing(), Seconds(waited), *f_.rank->abandoned};
    const Breach breach = f_.meeting->broken().value_or(Breach{});
    return {f_.operation, f_.key.text(), breach.missing, Seconds(waited), breach.reason};
  }

  const Facts f_;
  std::optional<CommOutcome<void>> outcome_;
};

class ThreadComm final : public Comm {
 public:
  ThreadComm(std::shared_ptr<ThreadWorldState> world, int seat)
      : world_(std::move(world)),
        seat_(seat),
        rank_(seat),
        size_(world_->num_ranks),
        log_(seat),
        state_(std::make_shared<RankState>()) {}

  ~ThreadComm() override {
    const std::lock_guard lock(world_->mutex);
    world_->has_left[static_cast<std::size_t>(seat_)] = true;
    break_meetings_of(*world_, generation_, rank_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  // Operations of the previous generation that still wait for this rank fail.
  void regroup(const Membership& membership) override {
    const std::lock_guard lock(world_->mutex);
    break_meetings_of(*world_, generation_, rank_);
    const auto place = std::find(membership.seats.begin(), membership.seats.end(), seat_);
    ensure(place != membership.seats.end() && membership.generation > generation_,
           "worker {} cannot join generation {} after {}", seat_, membership.generation, generation_);
    world_->left_generations[seat_] = generation_ = membership.generation;
    world_->seats[generation_] = membership.seats;
    rank_ = static_cast<int>(place - membership.seats.begin());
    size_ = static_cast<int>(membership.seats.size());
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
      const auto met = start({.generation = generation_, .epoch = epoch, .group = group}, {.what = "a group"})
                           ->wait(deadline);
      if (!met) return met;
      const std::lock_guard lock(world_->mutex);
      connected_.insert({epoch, group});
    }
    return {};
  }

  void decline(int epoch, const std::string& reason) override {
    const std::lock_guard lock(world_->mutex);
    const Breach breach{fmt::format("rank {} declines: {}", rank_, reason), {rank_}};
    world_->declined.emplace(std::pair(generation_, epoch), breach);
    for (auto& [key, gathering] : world_->gatherings)
      if (key.generation == generation_ && key.epoch == epoch) break_gathering(gathering, breach);
  }

  void drop(int epoch) override {
    const std::lock_guard lock(world_->mutex);
    std::erase_if(connected_, [&](const Connected& group) { return group.epoch == epoch; });
  }

  void abandon(const std::string& reason) override {
    const std::lock_guard lock(world_->mutex);
    if (!state_->abandoned) state_->abandoned = reason;
    for (auto& [key, gathering] : world_->gatherings)
      for (auto& [number, meeting] : gathering.open) meeting->changed.notify_all();
  }

  std::unique_ptr<Pending> all_reduce(const Group& group, at::Tensor tensor, Sum kind,
                                      std::string_view what) override {
    return collective(group, all_reduce_operation(std::move(tensor), kind, what));
  }
  std::unique_ptr<Pending> all_gather(const Group& group, at::Tensor from, at::Tensor to,
                                      std::string_view what) override {
    return collective(group, all_gather_operation(std::move(from), std::move(to), num_members(group), what));
  }
  std::unique_ptr<Pending> reduce_scatter(const Group& group, at::Tensor from, at::Tensor to,
                                          std::string_view what) override {
    return collective(group,
                      reduce_scatter_operation(std::move(from), std::move(to), num_members(group), what));
  }
  std::unique_ptr<Pending> broadcast(const Group& group, at::Tensor tensor, int root,
                                     std::string_view what) override {
    const int place = place_of(root, with_members(group, size()));
    return collective(group, broadcast_operation(std::move(tensor), place, what));
  }
  std::unique_ptr<Pending> send(int peer, at::Tensor tensor, int tag, std::string_view what) override {
    return send_ahead(epoch_, peer, std::move(tensor), tag, what);
  }
  std::unique_ptr<Pending> receive(int peer, at::Tensor tensor, int tag, std::string_view what) override {
    return receive_ahead(epoch_, peer, std::move(tensor), tag, what);
  }
  std::unique_ptr<Pending> send_ahead(int epoch, int peer, at::Tensor tensor, int tag,
                                      std::string_view what) override {
    return message(epoch, {rank_, peer}, tag, message_operation(CommKind::send, std::move(tensor), what));
  }
  std::unique_ptr<Pending> receive_ahead(int epoch, int peer, at::Tensor tensor, int tag,
                                         std::string_view what) override {
    return message(epoch, {peer, rank_}, tag, message_operation(CommKind::receive, std::move(tensor), what));
  }

  const FlightLog& flight_log() const override { return log_; }

 private:
  struct Connected {
    int epoch = 0;
    Group group;
    bool operator<(const Connected& other) const {
      return epoch != other.epoch ? epoch < other.epoch : comes_before(group, other.group);
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
    const Group whole = with_members(group, size());
    ensure(is_connected({epoch_, whole}), "rank {}: {} is not connected", rank_, group_text(whole, epoch_));
    return start({.generation = generation_, .epoch = epoch_, .group = whole}, std::move(operation));
  }

  std::unique_ptr<Pending> message(int epoch, std::vector<int> ends, int tag, CommOperation operation) {
    ensure(ends[0] != ends[1] && std::min(ends[0], ends[1]) >= 0 && std::max(ends[0], ends[1]) < size(),
           "a message from rank {} to rank {} in a world of {}", ends[0], ends[1], size());
    return start({.generation = generation_,
                  .epoch = epoch,
                  .tag = tag,
                  .is_message = true,
                  .group = {Role::world, std::move(ends)}},
                 std::move(operation));
  }

  // With the world's lock held: whether a rank of this generation has moved to a later one or has left the
  // world.
  bool is_away(int rank) const {
    const auto seats = world_->seats.find(generation_);
    const int seat = seats == world_->seats.end() ? rank : seats->second[static_cast<std::size_t>(rank)];
    const auto later = world_->left_generations.find(seat);
    return world_->has_left[static_cast<std::size_t>(seat)] ||
           (later != world_->left_generations.end() && later->second > generation_);
  }

  std::unique_ptr<Pending> start(MeetingKey key, CommOperation operation) {
    std::string text = operation.text();
    const std::int64_t flight =
        log_.post(name(operation.kind), operation.what, key.text(), operation.bytes());
    const int place = place_of(rank_, key.group);
    const std::lock_guard lock(world_->mutex);
    const std::int64_t number = num_started_[key]++;
    Gathering& gathering = world_->gatherings[key];
    std::shared_ptr<Meeting>& open = gathering.open[number];
    if (open == nullptr) open = std::make_shared<Meeting>(key.group.members);
    const std::shared_ptr<Meeting> meeting = open;
    if (gathering.broken) meeting->break_off(*gathering.broken);
    if (const auto declined = world_->declined.find({key.generation, key.epoch});
        declined != world_->declined.end())
      meeting->break_off(declined->second);
    meeting->come(place, std::move(operation));
    for (const int member : meeting->missing())
      if (is_away(member)) meeting->break_off(left(member));
    if (meeting->broken() && !gathering.broken) break_gathering(gathering, *meeting->broken());
    if (meeting->is_complete()) gathering.open.erase(number);
    return std::make_unique<ThreadPending>(
        ThreadPending::Facts{world_, state_, meeting, std::move(key), place, &log_, flight, std::move(text)});
  }

  const std::shared_ptr<ThreadWorldState> world_;
  const int seat_;
  int rank_, size_;
  FlightLog log_;
  std::shared_ptr<RankState> state_;
  int generation_ = 0, epoch_ = 0;
  // Protected by the world's lock: another thread may prepare.
  std::set<Connected> connected_;
  std::map<MeetingKey, std::int64_t> num_started_;
};

}  // namespace

ThreadWorld::ThreadWorld(int num_ranks) : state_(std::make_shared<ThreadWorldState>(num_ranks)) {
  ensure(num_ranks > 0, "a world of {} ranks", num_ranks);
}

ThreadWorld::~ThreadWorld() = default;

int ThreadWorld::size() const { return state_->num_ranks; }

std::unique_ptr<Comm> ThreadWorld::comm(int rank) {
  ensure(rank >= 0 && rank < size(), "rank {} of a world of {}", rank, size());
  const std::lock_guard lock(state_->mutex);
  ensure(!state_->is_taken[static_cast<std::size_t>(rank)], "the Comm of rank {} was already created", rank);
  state_->is_taken[static_cast<std::size_t>(rank)] = true;
  return std::make_unique<ThreadComm>(state_, rank);
}

}  // namespace optimus
