// Replays Bamboo, which uses pipelines with a fixed number of stages. Every node also computes the layers of
// its successor, so it can take over the successor's stage if that node is lost. This slows training down
// until the end of the next step, when stages are redistributed. If two neighbors are lost, training
// restarts.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "trials/published_job.h"
#include "trials/replay_systems.h"

namespace optimus {
namespace {

class RedundantJob final : public PublishedJob {
 public:
  using PublishedJob::PublishedJob;

 private:
  struct Slot {
    int pipeline = 0, stage = 0;
    bool operator==(const Slot&) const = default;
  };

  void on_node_ready(int node) override {
    if (state_ == State::halted) {
      registered_nodes_ = ready_nodes();
      start_rendezvous(replay_case_.reconfiguration.fatal_restart_seconds, State::in_rendezvous);
    } else if (is_in_rendezvous()) {
      registered_nodes_.push_back(node);
    } else {
      ++num_waiting_;
    }
  }

  void start_rendezvous(double seconds, State state) {
    rendezvous_seconds_ = seconds;
    open_rendezvous(replay_case_.ticks(seconds), state);
  }

  void on_node_removed(int node, bool /*was_ready*/) override {
    const auto lost_slots = slots_.extract(node);
    if (state_ == State::halted) return;
    if (is_in_rendezvous()) {
      // The node was registered, so the rendezvous starts again.
      if (std::erase(registered_nodes_, node) > 0) start_rendezvous(rendezvous_seconds_, state_);
      return;
    }
    if (!lost_slots.empty() && !try_takeover(lost_slots.mapped())) {
      registered_nodes_ = ready_nodes();
      start_rendezvous(replay_case_.reconfiguration.fatal_restart_seconds, State::in_overlapped_rendezvous);
    } else {
      slow_down();
    }
  }

  // Returns whether the node with the previous stage took over. A node that already has two stages cannot
  // take over.
  bool try_takeover(const std::vector<Slot>& lost) {
    if (lost.size() > 1) return false;
    const int stages = replay_case_.reconfiguration.stages;
    const Slot previous_slot{lost.front().pipeline, (lost.front().stage + stages - 1) % stages};
    const auto holder = std::find_if(slots_.begin(), slots_.end(), [&](const auto& entry) {
      return std::find(entry.second.begin(), entry.second.end(), previous_slot) != entry.second.end();
    });
    if (holder == slots_.end() || holder->second.size() > 1) return false;
    holder->second.push_back(lost.front());
    return true;
  }

  // From now on, steps take 1.5 times as long, including the rest of the current step.
  void slow_down() {
    if (is_slow_) return;
    is_slow_ = true;
    if (!has_step_) return;
    const std::int64_t remaining = step_end_ - now_;
    ++run_;
    begin_step(now_, remaining * 3 / 2);
  }

  bool is_counted(const ReplayEvent& rendezvous_end) const override {
    if (rendezvous_end.number == rendezvous_) return true;
    return is_published() && rebalances_.count(rendezvous_end.number) == 0;
  }

  void on_started(std::int64_t nodes) override {
    const int stages = replay_case_.reconfiguration.stages;
    num_pipelines_ = static_cast<int>(std::ssize(registered_nodes_)) / stages;
    slots_.clear();
    for (int i = 0; i < num_pipelines_ * stages; ++i)
      slots_[registered_nodes_[static_cast<std::size_t>(i)]] = {{i / stages, i % stages}};
    num_waiting_ = static_cast<int>(std::ssize(registered_nodes_)) - num_pipelines_ * stages;
    is_slow_ = false;
    step_ticks_ = replay_case_.step_ticks(static_cast<int>(nodes));
    if (step_ticks_ > 0) begin_step(now_, step_ticks_);
  }

  bool needs_rebalance() const {
    constexpr double kMaxDoubledFraction = 0.05;
    const auto num_doubled = static_cast<int>(std::count_if(
        slots_.begin(), slots_.end(), [](const auto& entry) { return entry.second.size() > 1; }));
    const int num_active = replay_case_.reconfiguration.stages * num_pipelines_ - num_doubled;
    if (num_doubled > 0 &&
        (num_waiting_ >= num_doubled || 2.0 * num_doubled / num_active > kMaxDoubledFraction))
      return true;
    return (num_active + num_waiting_) / replay_case_.reconfiguration.stages > num_pipelines_;
  }

  void on_step_ended(std::int64_t /*began*/) override {
    ++num_steps_;
    if (state_ == State::running && needs_rebalance()) {
      registered_nodes_ = ready_nodes();
      ++run_;
      start_rendezvous(replay_case_.reconfiguration.reconfigure_seconds, State::in_rendezvous);
      rebalances_.insert(rendezvous_);
      return;
    }
    begin_step(now_, is_slow_ ? step_ticks_ * 3 / 2 : step_ticks_);
  }

  double num_counted_steps() const override { return static_cast<double>(num_steps_); }

  std::map<int, std::vector<Slot>> slots_;  // [node]: its stages
  std::set<std::int64_t> rebalances_;       // rendezvous that were opened at the end of a step, not by a loss
  int num_pipelines_ = 0;
  int num_waiting_ = 0;  // not decremented when a waiting node leaves
  bool is_slow_ = false;
  double rendezvous_seconds_ = 0;
  std::int64_t step_ticks_ = 0, num_steps_ = 0;
};

}  // namespace

ReplayOutcome replay_bamboo(const ReplayCase& replay_case) { return RedundantJob(replay_case).run(); }

}  // namespace optimus
