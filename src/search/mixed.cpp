// See mixed.h.
#include "search/mixed.h"

#include <algorithm>
#include <functional>

#include "plan/validate.h"
#include "search/failures.h"
#include "search/fitted_plan.h"

namespace optimus {

bool PlanImprover::fits(const Plan& plan) const {
  return !find_problem(plan, demand_.model) && peak_memory_of(demand_, cluster_view_, plan).fits();
}

bool PlanImprover::consider(const Plan& plan) {
  if (find_problem(plan, demand_.model)) return false;
  const PeakMemory peak_memory = peak_memory_of(demand_, cluster_view_, plan);
  if (!peak_memory.fits()) return false;
  const double seconds = seconds_of(demand_, cluster_view_, plan);
  const double objective = seconds * objective_weight(demand_, cluster_view_.map(), plan);
  if (has_plan() && objective >= best_plan_.objective * (1 - 1e-6)) return false;
  best_plan_ = {plan, seconds, objective, peak_memory};
  return true;
}

namespace {

// Whether to change the strategy of `block`, which is layer `layer` of its stage (-1 for embedding and head).
using Choice = std::function<bool(int block, int layer)>;
using Change = std::function<void(LayerStrategy&)>;

Plan with_changed_layers(Plan plan, const Choice& is_chosen, const Change& change) {
  for (Pipeline& pipeline : plan.pipelines)
    for (Stage& stage : pipeline.stages) {
      int layer = 0;
      for (Chunk& chunk : stage.chunks) {
        std::vector<BlockRun> runs;
        for (const BlockRun& run : chunk.runs)
          for (int block = run.first_block; block < run.first_block + run.count; ++block) {
            const bool is_end = block == 0 || block + 1 == plan.num_blocks;
            LayerStrategy strategy = run.strategy;
            if (is_chosen(block, is_end ? -1 : layer)) change(strategy);
            if (!is_end) ++layer;
            if (!runs.empty() && runs.back().strategy == strategy)
              ++runs.back().count;
            else
              runs.push_back({block, 1, strategy});
          }
        chunk.runs = std::move(runs);
      }
    }
  return plan;
}

int max_layers_of_stage(const Plan& plan) {
  int maximum = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      int blocks = 0;
      for (const Chunk& chunk : stage.chunks) blocks += chunk.end_block() - chunk.first_block();
      maximum = std::max(maximum, blocks);
    }
  return maximum;
}

// The largest number in (low, high] for which works(number) is true, or `low` if there is none. If works() is
// true for a number, it must be true for all smaller numbers.
int largest_working(int low, int high, const std::function<bool(int)>& works) {
  while (low < high) {
    const int middle = high - (high - low) / 2;
    if (works(middle))
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

const LayerStrategy& first_strategy(const Plan& plan) {
  return plan.pipelines.front().stages.front().chunks.front().runs.front().strategy;
}

bool holds_for_all_layers(const Plan& plan, const std::function<bool(const LayerStrategy&)>& holds) {
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const Chunk& chunk : stage.chunks)
        for (const BlockRun& run : chunk.runs)
          if (!holds(run.strategy)) return false;
  return true;
}

// Lowers the ZeRO stage in as many layers of each stage as memory allows. These layers then need no weight
// gathers, or need only one gradient reduction per step.
void reduce_sharding(PlanImprover& improver, const Constraints& constraints) {
  const Plan plan = improver.best().plan;
  const int zero = first_strategy(plan).zero;
  if (zero < 2 || !holds_for_all_layers(plan, [&](const LayerStrategy& s) { return s.zero == zero; })) return;
  for (int lower_zero = zero - 1; lower_zero >= 1; --lower_zero) {
    if (constraints.zero && !constraints.zero->contains(lower_zero)) continue;
    const auto plan_with = [&](int layers) {
      return with_changed_layers(
          plan, [&](int, int layer) { return layer >= 0 && layer < layers; },
          [&](LayerStrategy& s) { s.zero = lower_zero; });
    };
    const int layers =
        largest_working(0, max_layers_of_stage(plan), [&](int n) { return improver.fits(plan_with(n)); });
    if (layers > 0) improver.consider(plan_with(layers));
  }
}

// Tries a different tensor-parallel size for embedding and head, because these blocks are much wider than
// layers.
void resplit_ends(PlanImprover& improver, const ClusterView& cluster_view) {
  const Plan plan = improver.best().plan;
  if (plan.pipelines.size() != 1) return;
  const LayerStrategy& first_layer_strategy = first_strategy(plan);
  const auto width = static_cast<int>(plan.pipelines.front().stages.front().devices.size());
  for (const int tp : {1, cluster_view.group_of(0).devices_per_domain}) {
    if (tp == first_layer_strategy.tp || width % (tp * first_layer_strategy.cp) != 0) continue;
    const auto change = [&](LayerStrategy& s) {
      s.tp = tp, s.sequence_parallel =
                     tp > 1 && (first_layer_strategy.sequence_parallel || first_layer_strategy.tp == 1);
      s.shard_group = 0;
    };
    improver.consider(with_changed_layers(
        plan, [&](int block, int) { return block + 1 == plan.num_blocks; }, change));
    improver.consider(with_changed_layers(
        plan, [](int, int layer) { return layer < 0; }, change));
  }
}

// Shards the parameters of embedding and head, and of as few layers of each stage as needed to fit.
void increase_sharding(PlanImprover& improver, const Plan& plan) {
  const auto plan_with = [&](int layers) {
    return with_changed_layers(
        plan, [&](int, int layer) { return layer < layers; }, [](LayerStrategy& s) { s.zero = 3; });
  };
  const int maximum = max_layers_of_stage(plan);
  if (!improver.fits(plan_with(maximum))) return;
  const int num_unsharded =
      largest_working(0, maximum, [&](int n) { return improver.fits(plan_with(maximum - n)); });
  improver.consider(plan_with(maximum - num_unsharded));
}

// Uses the smallest groups that fit. Larger groups save fewer inputs, but all activations of a group are live
// at the same time.
void recompute_in_groups(PlanImprover& improver, const Plan& plan) {
  const int maximum = max_layers_of_stage(plan);
  for (const int layers : {2, 3, 4, 6, 8, 12, 16}) {
    if (layers > maximum) return;
    const Plan grouped_plan = with_changed_layers(
        plan, [](int, int) { return true; },
        [&](LayerStrategy& s) {
          if (s.recompute == RecomputeMode::full) s.recompute_layers = layers;
        });
    if (!improver.fits(grouped_plan)) continue;
    improver.consider(grouped_plan);
    return;
  }
}

}  // namespace

void mix_layers(PlanImprover& improver, const Demand& demand, const ClusterView& cluster_view) {
  reduce_sharding(improver, demand.constraints);
  if (!demand.constraints.tp) resplit_ends(improver, cluster_view);
}

void fit_by_sharding_or_grouping(PlanImprover& improver, const Demand& demand, BoundModel& bound_model,
                                 const GridResult& grid) {
  constexpr int kMaxTries = 4;
  std::vector<EvaluatedCandidate> faster_candidates = grid.unfit;
  if (grid.nearest) faster_candidates.push_back(*grid.nearest);
  std::stable_sort(
      faster_candidates.begin(), faster_candidates.end(),
      [](const EvaluatedCandidate& a, const EvaluatedCandidate& b) { return a.objective < b.objective; });
  const Constraints& constraints = demand.constraints;
  const bool may_shard = !constraints.no_zero3 && (!constraints.zero || constraints.zero->contains(3));
  int num_sharding_tries = 0, num_grouping_tries = 0;
  for (const EvaluatedCandidate& entry : faster_candidates) {
    if (improver.has_plan() && entry.objective >= improver.best().objective) break;
    const Candidate& c = entry.candidate;
    const bool is_shared = has_copies(demand, c);
    if (c.zero < 3 && is_shared && may_shard && num_sharding_tries++ < kMaxTries)
      increase_sharding(improver, grid_plan(demand, bound_model, c));
    if (c.recompute == RecomputeMode::full && !c.is_fitted && num_grouping_tries++ < kMaxTries)
      recompute_in_groups(improver, grid_plan(demand, bound_model, c));
  }
}

}  // namespace optimus
