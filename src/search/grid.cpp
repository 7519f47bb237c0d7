// Best-first search of the grid. A shape is expanded into its schedules and ZeRO stages when its bound is the
// smallest remaining one. Each resulting candidate is simulated when its own bound is the smallest.
#include "search/grid.h"

#include <algorithm>
#include <queue>

#include "plan/validate.h"
#include "search/failures.h"
#include "search/fitted_plan.h"

namespace optimus {
namespace {

// Enumerates the axes that determine the cost of a layer: tp, cp, microbatch, sequence parallelism and ep.
template <typename Visit>
void for_splits(const Demand& demand, const ClusterView& cluster_view, Visit&& visit) {
  for (const int tp : tensor_choices(demand, cluster_view.num_devices()))
    for (const int cp : context_choices(demand, cluster_view.num_devices() / tp))
      for (const int microbatch : microbatch_choices(demand, cp))
        for (const bool is_sequence_parallel : {true, false}) {
          if (is_sequence_parallel && tp == 1) continue;
          // Expert parallelism requires sequence parallelism, because experts process each device's own
          // positions.
          if (!is_sequence_parallel && tp > 1 && demand.model.is_mixture()) continue;
          Candidate c{.tp = tp, .cp = cp, .microbatch = microbatch};
          c.sequence_parallel = is_sequence_parallel;
          for (const int ep : expert_choices(demand, cluster_view.num_devices())) {
            c.ep = ep;
            if (static_cast<std::int64_t>(replica_multiple(c)) * tp * cp <= cluster_view.num_devices())
              visit(c);
          }
        }
}

// Enumerates the numbers of stages and replicas, and the recompute modes.
template <typename Visit>
void for_shapes(const Demand& demand, const ClusterView& cluster_view, const Candidate& split,
                Visit&& visit) {
  std::vector<std::pair<RecomputeMode, bool>> modes;
  for (const RecomputeMode mode : recompute_choices(demand)) modes.emplace_back(mode, false);
  if (demand.constraints.recompute.empty()) modes.emplace_back(RecomputeMode::none, true);
  const int max_dp = cluster_view.num_devices() / (split.tp * split.cp);
  for (const int pp : pipeline_choices(demand, max_dp))
    for (const int dp : data_choices(demand, max_dp / pp, split.microbatch, replica_multiple(split)))
      for (const auto& [mode, is_fitted] : modes) {
        Candidate c = split;
        c.pp = pp, c.dp = dp, c.recompute = mode, c.is_fitted = is_fitted;
        visit(c);
      }
}

// Enumerates the ZeRO stages of a candidate with a schedule, with and without offloading.
template <typename Visit>
void for_zeros(const Demand& demand, const ClusterView& cluster_view, const Candidate& scheduled,
               Visit&& visit) {
  const int in_domain = std::max(1, cluster_view.group_of(0).devices_per_domain / scheduled.tp);
  for (const ZeroChoice& zero : zero_choices(demand, scheduled, in_domain))
    for (const bool is_offloaded : {false, true}) {
      if (is_offloaded && !demand.constraints.offload) continue;
      Candidate c = scheduled;
      c.zero = zero.zero, c.shard_group = zero.shard_group, c.copy_distance = zero.copy_distance;
      c.offload = is_offloaded;
      visit(c);
    }
}

template <typename Visit>
void for_schedules(const Demand& demand, const Candidate& shape, Visit&& visit) {
  // An incomplete last round takes as long as a complete round, and other trainers reject it.
  const bool has_whole_rounds =
      count_microbatches(demand.batch, shape.microbatch, shape.dp).number % shape.pp == 0;
  for (const ScheduleChoice& choice : schedule_choices(demand, shape.pp)) {
    if (choice.schedule == Schedule::interleaved && !has_whole_rounds && demand.constraints.schedule.empty())
      continue;
    Candidate c = shape;
    c.schedule = choice.schedule, c.chunks = choice.chunks;
    visit(c);
  }
}

enum class Level { split, shape, variant, tight };  // tight: a variant whose bound cannot be raised further
struct Node {
  double bound = 0;  // lower bound on the objective
  int index = 0;
  Level level = Level::split;
  // Nodes that are closer to a simulation are visited slightly earlier than their bound requires, so that a
  // good plan is found early.
  double sort_key() const {
    constexpr double kVisitOrderFactors[] = {1.15, 1.08, 1.01, 1};
    return bound * kVisitOrderFactors[static_cast<int>(level)];
  }
  // The priority queue returns the node with the smallest sort_key() first.
  bool operator<(const Node& other) const { return sort_key() > other.sort_key(); }
};

class GridSearch {
 public:
  GridSearch(const Demand& demand, const ClusterView& cluster_view, BoundModel& bound_model,
             const SearchLimits& limits)
      : demand_(demand), cluster_view_(cluster_view), bound_model_(bound_model), limits_(limits) {}

  GridResult run() {
    for_splits(demand_, cluster_view_, [&](const Candidate& split) {
      queue_.push(
          {bound_model_.bound_any_shape(split), static_cast<int>(open_candidates_.size()), Level::split});
      open_candidates_.push_back(split);
    });
    while (!queue_.empty() && result_.num_simulated < limits_.max_simulations) {
      const Node node = queue_.top();
      queue_.pop();
      if (node.bound >= best_objective_) continue;
      const Candidate candidate = open_candidates_[static_cast<std::size_t>(node.index)];
      if (node.level == Level::split)
        open_split(candidate);
      else if (node.level == Level::shape)
        open_shape(candidate, node.bound);
      else if (node.level == Level::variant)
        tighten(candidate, node.bound);
      else
        evaluate(candidate);
    }
    double min_remaining_bound = best_objective_;
    for (; !queue_.empty(); queue_.pop())
      min_remaining_bound = std::min(min_remaining_bound, queue_.top().bound);
    if (best_objective_ > min_remaining_bound) result_.gap = best_objective_ / min_remaining_bound - 1;
    std::sort(
        result_.evaluated.begin(), result_.evaluated.end(),
        [](const EvaluatedCandidate& a, const EvaluatedCandidate& b) { return a.objective < b.objective; });
    return std::move(result_);
  }

 private:
  // The objective per second of step time. A candidate without a ZeRO stage gets the rate of its best
  // variant.
  double rate(const Candidate& c) {
    const double slowdown = failure_slowdown(demand_.failures, c.num_devices(), survives_device_loss(c));
    if (demand_.goal == Goal::throughput) return slowdown;
    const auto [found, is_new] = rates_.try_emplace(c.num_devices());
    if (is_new) found->second = cost_rate(demand_, cluster_view_.map(), c.num_devices());
    return found->second * slowdown;
  }

  void push(const Candidate& c, const Bound& bound, double at_least, Level level) {
    ++result_.num_candidates;
    const double objective = std::max(at_least, bound.seconds * rate(c));
    if (!bound.fits()) {
      ++result_.ruled_out["memory"];
      const Candidate reported = level == Level::shape ? max_sharded(demand_, c) : c;
      return remember_unfit({reported, objective / rate(c), objective, {bound.bytes, bound.limit}});
    }
    if (objective >= best_objective_) return;
    queue_.push({objective, static_cast<int>(open_candidates_.size()), level});
    open_candidates_.push_back(c);
  }

  void open_split(const Candidate& split) {
    for_shapes(demand_, cluster_view_, split, [&](const Candidate& c) {
      const Bound bound = bound_model_.bound_any_schedule(c, best_objective_ / rate(c));
      if (bound.limit == 0 && bound.seconds * rate(c) >= best_objective_)
        return void(++result_.num_candidates);
      push(c, bound, 0, Level::shape);
    });
  }

  // Whether a fitted candidate recomputes any layers. Sharding more state could avoid the recomputation.
  bool needs_recompute(const Candidate& c) {
    if (!c.is_fitted) return false;
    const std::vector<StageLayers> layers = bound_model_.layers_of(c);
    return std::any_of(layers.begin(), layers.end(),
                       [](const StageLayers& stage) { return stage.full + stage.selective > 0; });
  }

  bool allows_zero2() const { return !demand_.constraints.zero || demand_.constraints.zero->contains(2); }

  void open_shape(const Candidate& shape, double at_least) {
    for_schedules(demand_, shape, [&](const Candidate& scheduled) {
      const double min_objective =
          std::max(at_least, bound_model_.bound_any_zero(scheduled) * rate(scheduled));
      if (min_objective >= best_objective_) return void(++result_.num_candidates);
      bool fits_with_zero1 = false;  // if ZeRO 1 fits, ZeRO 2 only adds reductions
      for_zeros(demand_, cluster_view_, scheduled, [&](const Candidate& c) {
        if (c.zero == 2 && c.shard_group == 0 && c.copy_distance == 0 && fits_with_zero1) return;
        const Bound bound = bound_model_.bound(c, best_objective_ / rate(c));
        if (bound.limit == 0) return void(++result_.num_candidates);  // too slow, regardless of its memory
        if (c.zero == 1 && !c.offload && c.shard_group == 0 && c.copy_distance == 0)
          fits_with_zero1 = bound.bytes < 0.99 * bound.limit && !needs_recompute(c);
        push(c, bound, min_objective, Level::variant);
      });
    });
  }

  void tighten(const Candidate& c, double objective) {
    const double seconds = bound_model_.tighten_bound(c, {objective / rate(c), 0, 0});
    queue_.push(
        {std::max(objective, seconds * rate(c)), static_cast<int>(open_candidates_.size()), Level::tight});
    open_candidates_.push_back(c);
  }

  // Called for a ZeRO 1 candidate that does not fit, if ZeRO 2 was skipped because it seemed to fit.
  void push_zero2(Candidate c) {
    c.zero = 2;
    push(c, bound_model_.bound(c), bound_model_.bound_any_zero(c) * rate(c), Level::variant);
  }

  // Stores the fastest candidates that do not fit, and the candidate with the smallest excess.
  void remember_unfit(const EvaluatedCandidate& entry) {
    const auto excess = [](const PeakMemory& peak_memory) {
      return std::max(peak_memory.bytes - peak_memory.limit, peak_memory.host_bytes - peak_memory.host_limit);
    };
    if (!result_.nearest || excess(entry.peak_memory) < excess(result_.nearest->peak_memory))
      result_.nearest = entry;
    if (result_.unfit.size() < kMaxUnfit) {
      result_.unfit.push_back(entry);
      return;
    }
    const auto slowest = std::max_element(
        result_.unfit.begin(), result_.unfit.end(),
        [](const EvaluatedCandidate& a, const EvaluatedCandidate& b) { return a.objective < b.objective; });
    if (entry.objective < slowest->objective) *slowest = entry;
  }

  void evaluate(const Candidate& requested) {
    if (const auto problem = find_problem(grid_plan(demand_, bound_model_, requested), demand_.model)) {
      ++result_.ruled_out[*problem];
      return;
    }
    const auto [c, plan, peak_memory] = fit_memory_margin(demand_, cluster_view_, bound_model_, requested);
    // If the plan needs no recomputation, it equals a plan that was already evaluated.
    if (c.is_fitted && !needs_recompute(c)) return;
    EvaluatedCandidate entry{c, 0, 0, peak_memory, true};
    if (!entry.peak_memory.fits()) {
      ++result_.ruled_out[entry.peak_memory.fits_host() ? "memory" : "host memory"];
      if (c.zero == 1 && c.shard_group == 0 && allows_zero2()) push_zero2(c);
      entry.seconds = bound_model_.bound_any_schedule(c).seconds, entry.is_simulated = false;
      entry.objective = entry.seconds * rate(c);
      return remember_unfit(entry);
    }
    ++result_.num_simulated;
    entry.seconds = seconds_of(demand_, cluster_view_, plan);
    entry.objective = entry.seconds * rate(c);
    best_objective_ = std::min(best_objective_, entry.objective);
    result_.evaluated.push_back(entry);
  }

  static constexpr std::size_t kMaxUnfit = 64;
  const Demand& demand_;
  const ClusterView& cluster_view_;
  BoundModel& bound_model_;
  const SearchLimits& limits_;
  std::vector<Candidate> open_candidates_;
  std::priority_queue<Node> queue_;
  std::map<int, double> rates_;
  double best_objective_ = 1e300;
  GridResult result_;
};

}  // namespace

GridResult search_grid(const Demand& demand, const ClusterView& cluster_view, BoundModel& bound_model,
                       const SearchLimits& limits) {
  return GridSearch(demand, cluster_view, bound_model, limits).run();
}

std::vector<Candidate> all_candidates(const Demand& demand, const ClusterView& cluster_view) {
  std::vector<Candidate> candidates;
  for_splits(demand, cluster_view, [&](const Candidate& split) {
    for_shapes(demand, cluster_view, split, [&](const Candidate& shape) {
      for_schedules(demand, shape, [&](const Candidate& scheduled) {
        for_zeros(demand, cluster_view, scheduled, [&](const Candidate& c) { candidates.push_back(c); });
      });
    });
  });
  return candidates;
}

}  // namespace optimus
