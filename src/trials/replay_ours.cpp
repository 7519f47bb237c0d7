// Replays Optimus-Megatron. A loss is detected immediately. The surviving nodes continue with the template
// for their number and repeat the step in flight. A joining node is prepared during training and is added
// between two steps. The number of nodes to use is chosen by speed minus the expected cost of failures at the
// observed rate, so nodes that would not make training faster stay unused.
#include <algorithm>

#include "recovery/repair.h"
#include "trials/published_job.h"
#include "trials/replay_systems.h"

namespace optimus {
namespace {

class LiveJob {
 public:
  explicit LiveJob(const ReplayCase& replay_case)
      : replay_case_(replay_case),
        is_ready_(static_cast<std::size_t>(replay_case.trace.num_nodes)),
        is_used_(is_ready_),
        trace_end_(replay_case.ticks(replay_case.trace.length)) {}

  ReplayOutcome run() {
    const std::vector<ReplayEvent> node_events = events();
    for (std::size_t i = 0; i < node_events.size() && node_events[i].time < trace_end_; ++i) {
      const std::int64_t now = node_events[i].time;
      advance(now);
      advance_clock(now);
      if (node_events[i].kind == EventKind::ready)
        on_node_joined(node_events[i].node);
      else
        on_node_lost(node_events[i].node, now);
      const bool is_last_of_instant = i + 1 == node_events.size() || node_events[i + 1].time > now;
      if (is_last_of_instant && num_used_ == 0) resume_training(now, pause_before_start());
    }
    advance(trace_end_);
    if (last_end_ > first_start_)
      outcome_.samples_per_second = replay_case_.ticks_per_second * static_cast<double>(outcome_.steps) *
                                    replay_case_.batch / static_cast<double>(last_end_ - first_start_);
    return outcome_;
  }

 private:
  // The times at which nodes join and leave the training. Nodes that leave the cluster before they can join
  // are omitted.
  std::vector<ReplayEvent> events() const {
    std::vector<ReplayEvent> result;
    std::vector<std::size_t> entry(static_cast<std::size_t>(replay_case_.trace.num_nodes));
    for (const NodeEvent& event : replay_case_.trace.events) {
      const std::int64_t time = replay_case_.ticks(event.seconds);
      std::size_t& next_entry = entry[static_cast<std::size_t>(event.node)];
      if (event.is_add) {
        next_entry = result.size();
        result.push_back(
            {.time = time + replay_case_.ticks(replay_case_.ready_seconds + prepare_seconds(event)),
             .kind = EventKind::ready,
             .node = event.node});
      } else if (result[next_entry].time < time) {
        result.push_back({.time = time, .kind = EventKind::remove, .node = event.node});
      } else {
        result[next_entry].time = kNeverJoins;
      }
    }
    std::stable_sort(result.begin(), result.end(), [](const ReplayEvent& a, const ReplayEvent& b) {
      return a.time != b.time ? a.time < b.time : a.kind < b.kind;
    });
    return result;
  }

  // Nodes that are available from the start do not have to join, so they need no preparation.
  double prepare_seconds(const NodeEvent& event) const {
    return event.seconds > replay_case_.trace.events.front().seconds ? replay_case_.costs.prepare_seconds : 0;
  }

  double speed(int nodes) const {
    return nodes >= replay_case_.reconfiguration.min_nodes ? replay_case_.throughput.at(nodes) : 0;
  }

  std::int64_t step_ticks(int nodes) const { return replay_case_.step_ticks(nodes); }

  // Samples per second on this number of nodes, reduced by the expected cost of failures.
  double effective_speed(int nodes) const {
    if (speed(nodes) <= 0) return 0;
    const double loss =
        0.5 * replay_case_.batch / speed(nodes) + recovery_pause() + replay_case_.costs.detection_seconds;
    return speed(nodes) * std::max(0.1, 1 - rate_.per_node_second() * nodes * loss);
  }

  double recovery_pause() const {
    return replay_case_.costs.recovery_seconds +
           replay_case_.costs.move_seconds(replay_case_.costs.loss_bytes);
  }
  double switch_pause() const {
    return replay_case_.costs.switch_seconds + replay_case_.costs.move_seconds(replay_case_.costs.join_bytes);
  }

  int best_num_nodes() const {
    int best = 0;
    const int max_nodes = std::min(
        num_ready_, std::max(replay_case_.throughput.max_nodes(), replay_case_.reconfiguration.min_nodes));
    for (int nodes = replay_case_.reconfiguration.min_nodes; nodes <= max_nodes; ++nodes)
      if (effective_speed(nodes) > effective_speed(best)) best = nodes;
    return best;
  }

  // Selects `count` ready nodes. Nodes that are already in use come first, then others in ascending order.
  void use_nodes(int count) {
    int remaining = count;
    for (const bool was_used : {true, false})
      for (std::size_t node = 0; node < is_ready_.size(); ++node)
        if (is_ready_[node] && is_used_[node] == was_used && (was_used || remaining > 0)) {
          is_used_[node] = remaining > 0;
          remaining -= is_used_[node];
        }
    num_used_ = count - remaining;
  }

  void resume_training(std::int64_t time, double pause) {
    use_nodes(best_num_nodes());
    if (num_used_ == 0) return;
    ++outcome_.starts;
    begin_ = time + replay_case_.ticks(pause);
    if (first_start_ < 0) first_start_ = last_end_ = begin_;
  }

  // Completes the steps that end before `end_time`. The plan may change between two steps.
  void advance(std::int64_t end_time) {
    while (num_used_ > 0 && begin_ + step_ticks(num_used_) <= end_time) {
      outcome_.useful_seconds += static_cast<double>(step_ticks(num_used_)) / replay_case_.ticks_per_second;
      begin_ += step_ticks(num_used_), last_end_ = begin_;
      ++outcome_.steps;
      if (!is_plan_evaluated_) consider_change();
    }
  }

  // Called once after each loss and each join, because a plan change that does not pay off then does not pay
  // off later either.
  void consider_change() {
    is_plan_evaluated_ = true;
    const int nodes = best_num_nodes();
    if (nodes == num_used_) return;
    const double pause = switch_pause();
    const double seconds_until_failure = 1 / (rate_.per_node_second() * nodes);
    if ((effective_speed(nodes) - effective_speed(num_used_)) * seconds_until_failure > speed(nodes) * pause)
      resume_training(begin_, pause);
  }

  // If training is running, the node is added after the current step. If training is halted, it may have been
  // waiting for the node.
  void on_node_joined(int node) {
    is_ready_[static_cast<std::size_t>(node)] = true;
    ++num_ready_;
    is_plan_evaluated_ = false;
  }

  void on_node_lost(int node, std::int64_t now) {
    const auto index = static_cast<std::size_t>(node);
    is_ready_[index] = false, is_plan_evaluated_ = false;
    --num_ready_;
    rate_.add_failures(1);
    if (!is_used_[index]) return;
    is_used_[index] = false;
    outcome_.steps_lost += num_used_ > 0 && begin_ < now;
    num_used_ = 0;
    has_lost_used_node_ = true;
  }

  double pause_before_start() {
    if (first_start_ < 0) return replay_case_.costs.start_seconds;
    const double detection = has_lost_used_node_ ? replay_case_.costs.detection_seconds : 0;
    has_lost_used_node_ = false;
    return detection + recovery_pause();
  }

  void advance_clock(std::int64_t now) {
    rate_.add_node_time(num_ready_, static_cast<double>(now - last_time_) / replay_case_.ticks_per_second);
    last_time_ = now;
  }

  static constexpr std::int64_t kNeverJoins = INT64_MAX;

  const ReplayCase& replay_case_;
  std::vector<bool> is_ready_, is_used_;  // [node]
  std::int64_t trace_end_ = 0;
  int num_ready_ = 0, num_used_ = 0;
  std::int64_t begin_ = 0;  // start of the step in flight or of the next step
  std::int64_t first_start_ = -1, last_end_ = -1, last_time_ = 0;
  bool has_lost_used_node_ = false;  // a node in use was lost since training last resumed
  bool is_plan_evaluated_ = true;    // no change since the plan was last evaluated
  FailureRate rate_;
  ReplayOutcome outcome_;
};

}  // namespace

ReplayOutcome replay_ours(const ReplayCase& replay_case) { return LiveJob(replay_case).run(); }

}  // namespace optimus
