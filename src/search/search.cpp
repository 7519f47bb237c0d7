// Implements search.h: the grid search, its refinement, and the alternatives with the reasons for why they
// are worse.
#include "search/search.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "plan/describe.h"
#include "plan/validate.h"
#include "search/failures.h"
#include "search/fitted_plan.h"
#include "search/reason.h"
#include "search/refine.h"

namespace optimus {
namespace {

// The axes by which a user would distinguish two candidates.
enum class Axis { tensor, pipeline, context, experts, zero, schedule, recompute, microbatch, devices };
constexpr Axis kAxes[] = {Axis::tensor,    Axis::pipeline,   Axis::experts, Axis::zero,   Axis::schedule,
                          Axis::recompute, Axis::microbatch, Axis::context, Axis::devices};

bool differs(const Candidate& a, const Candidate& b, Axis axis) {
  switch (axis) {
    case Axis::tensor:
      return a.tp != b.tp;
    case Axis::pipeline:
      return a.pp != b.pp;
    case Axis::context:
      return a.cp != b.cp;
    case Axis::experts:
      return a.ep != b.ep;
    case Axis::zero:
      return a.zero != b.zero || a.copy_distance != b.copy_distance;
    case Axis::schedule:
      return a.schedule != b.schedule;
    case Axis::recompute:
      return a.recompute != b.recompute || a.is_fitted != b.is_fitted;
    case Axis::microbatch:
      return a.microbatch != b.microbatch;
    case Axis::devices:
      return a.num_devices() != b.num_devices();
  }
  return false;
}

bool has_equal_axes(const Candidate& a, const Candidate& b) {
  return a.chunks == b.chunks &&
         std::none_of(std::begin(kAxes), std::end(kAxes), [&](Axis axis) { return differs(a, b, axis); });
}

// Returns variants of the best candidate in which one axis is changed and the number of replicas is adapted.
std::vector<Candidate> neighbours(const Demand& demand, const ClusterView& cluster_view,
                                  const Candidate& best) {
  std::vector<Candidate> candidates;
  const auto add = [&](auto&& change) {
    Candidate c = best;
    change(c);
    if (c.tp < 1 || c.pp < 1 || c.cp < 1 || c.microbatch < 1 || c.zero < 0 || c.zero > 3) return;
    if (c.pp > demand.model.layers || c.tp > max_tensor_parts(demand.model)) return;
    if (c.ep < 1 || (demand.model.is_mixture() && demand.model.mixture.experts % c.ep != 0)) return;
    if (c.cp > demand.sequence_length || c.microbatch > demand.batch) return;
    const std::vector<int> replicas = data_choices(demand, cluster_view.num_devices() / (c.tp * c.cp * c.pp),
                                                   c.microbatch, replica_multiple(c));
    if (replicas.empty()) return;
    c.dp = replicas.back();
    c.sequence_parallel = (c.sequence_parallel || demand.model.is_mixture()) && c.tp > 1;
    if (c.pp * c.chunks > demand.model.layers || c.pp == 1) c.schedule = Schedule::one_f_one_b;
    if (c.schedule != Schedule::interleaved) c.chunks = 1;
    if (!has_copies(demand, c)) c.zero = 0;
    if (c.zero == 0 || (c.shard_group > 0 && c.dp * c.cp % c.shard_group != 0)) c.shard_group = 0;
    if (c.zero == 0 || c.copy_distance % std::max(1, num_shards(c)) == 0) c.copy_distance = 0;
    if (!(c == best) && std::find(candidates.begin(), candidates.end(), c) == candidates.end())
      candidates.push_back(c);
  };
  add([](Candidate& c) { c.tp *= 2, c.sequence_parallel = true; });
  add([](Candidate& c) { c.tp /= 2; });
  add([](Candidate& c) { c.pp *= 2; });
  add([](Candidate& c) { c.pp /= 2; });
  add([](Candidate& c) { c.zero = c.zero == 3 ? 1 : 3, c.shard_group = 0; });
  add([](Candidate& c) { c.zero = c.zero == 1 ? 2 : 1, c.shard_group = 0; });
  add([](Candidate& c) { c.copy_distance = 0; });
  add([](Candidate& c) {
    c.schedule = c.schedule == Schedule::one_f_one_b ? Schedule::interleaved : Schedule::one_f_one_b;
    c.chunks = c.schedule == Schedule::interleaved ? 2 : 1;
  });
  add([](Candidate& c) { c.recompute = RecomputeMode::none, c.is_fitted = false; });
  add([](Candidate& c) { c.recompute = RecomputeMode::full, c.is_fitted = false; });
  add([](Candidate& c) { c.microbatch *= 2; });
  add([](Candidate& c) { c.microbatch /= 2; });
  add([](Candidate& c) { c.cp *= 2; });
  if (demand.model.is_mixture()) {
    add([](Candidate& c) { c.ep *= 2; });
    add([](Candidate& c) { c.ep /= 2; });
  }
  return candidates;
}

class Explainer {
 public:
  Explainer(const Demand& demand, const ClusterView& cluster_view, BoundModel& bound_model,
            SearchResult& result)
      : demand_(demand), cluster_view_(cluster_view), bound_model_(bound_model), result_(result) {}

  void run(const GridResult& grid, int max_alternatives) {
    const Candidate& best_candidate = grid.evaluated.front().candidate;
    std::vector<EvaluatedCandidate> others(grid.evaluated.begin() + 1, grid.evaluated.end());
    others.insert(others.end(), grid.unfit.begin(), grid.unfit.end());
    for (const Candidate& c : neighbours(demand_, cluster_view_, best_candidate)) evaluate(c, others);
    std::stable_sort(others.begin(), others.end(),
                     [](const EvaluatedCandidate& a, const EvaluatedCandidate& b) {
                       return std::pair(!a.peak_memory.fits(), a.objective) <
                              std::pair(!b.peak_memory.fits(), b.objective);
                     });
    std::vector<Candidate> explained_candidates;
    for (const Axis axis : kAxes) {
      const auto is_new = [&](const Candidate& c) {
        return std::none_of(explained_candidates.begin(), explained_candidates.end(),
                            [&](const Candidate& t) { return has_equal_axes(c, t); });
      };
      const auto match = std::find_if(others.begin(), others.end(), [&](const EvaluatedCandidate& o) {
        return differs(best_candidate, o.candidate, axis) && is_new(o.candidate);
      });
      if (match == others.end() || std::ssize(explained_candidates) == max_alternatives) continue;
      explained_candidates.push_back(match->candidate);
      add(*match);
    }
    std::stable_sort(result_.alternatives.begin(), result_.alternatives.end(),
                     [](const Alternative& a, const Alternative& b) {
                       return std::pair(!a.peak_memory.fits(), a.objective) <
                              std::pair(!b.peak_memory.fits(), b.objective);
                     });
    make_pareto_front(grid.evaluated, others);
  }

 private:
  void evaluate(const Candidate& c, std::vector<EvaluatedCandidate>& others) {
    if (std::any_of(others.begin(), others.end(),
                    [&](const EvaluatedCandidate& o) { return o.candidate == c; }))
      return;
    const Plan plan = grid_plan(demand_, bound_model_, c);
    if (find_problem(plan, demand_.model)) return;
    EvaluatedCandidate entry{c, 0, 0, peak_memory_of(demand_, cluster_view_, plan), false};
    entry.seconds = entry.peak_memory.fits() ? bound_model_.bound(c).seconds : 0;
    if (entry.seconds == 0) entry.seconds = bound_model_.bound_any_schedule(c).seconds;
    entry.objective = entry.seconds * objective_weight(demand_, cluster_view_.map(), c);
    others.push_back(entry);
  }

  // Candidates that have only a bound so far are simulated here.
  void add(EvaluatedCandidate& entry) {
    Alternative other{grid_plan(demand_, bound_model_, entry.candidate), entry.seconds, entry.objective,
                      entry.peak_memory, ""};
    if (entry.peak_memory.fits()) {
      const StepPrediction step = predict(demand_, cluster_view_, other.plan, false);
      result_.num_simulated += entry.is_simulated ? 0 : 1;
      entry.is_simulated = true;
      entry.objective *= step.seconds / entry.seconds, entry.seconds = step.seconds;
      other.seconds = entry.seconds, other.objective = entry.objective;
      other.why = entry.objective < result_.objective * (1 - 1e-9)
                      ? "excluded by the constraints"
                      : why_slower(demand_, cluster_view_, result_.plan, result_.step, other.plan, step);
    } else {
      other.why = why_unfit(entry.peak_memory);
    }
    result_.alternatives.push_back(std::move(other));
  }

  // The Pareto front starts with the chosen plan, followed by every candidate that needs less memory than all
  // faster candidates.
  void make_pareto_front(std::vector<EvaluatedCandidate> candidates,
                         const std::vector<EvaluatedCandidate>& others) {
    candidates.insert(candidates.end(), others.begin(), others.end());
    std::sort(candidates.begin(), candidates.end(),
              [](const EvaluatedCandidate& a, const EvaluatedCandidate& b) { return a.seconds < b.seconds; });
    result_.front.push_back({full_text(result_.plan), result_.step.seconds, result_.peak_memory.bytes});
    for (const EvaluatedCandidate& entry : candidates) {
      // Memory savings of less than 1 % are not listed.
      if (!entry.is_simulated || !entry.peak_memory.fits() ||
          entry.peak_memory.bytes > 0.99 * result_.front.back().bytes || entry.seconds < result_.step.seconds)
        continue;
      result_.front.push_back({full_text(grid_plan(demand_, bound_model_, entry.candidate)), entry.seconds,
                               entry.peak_memory.bytes});
    }
  }

  const Demand& demand_;
  const ClusterView& cluster_view_;
  BoundModel& bound_model_;
  SearchResult& result_;
};

// The result if no grid candidate fits. No bound is known for a plan found beyond the grid, so the gap is
// infinite.
SearchResult result_beyond_grid(const Demand& demand, const ClusterView& cluster_view, ImprovedPlan best,
                                const GridResult& grid) {
  SearchResult result;
  result.plan = std::move(best.plan), result.peak_memory = best.peak_memory,
  result.objective = best.objective;
  result.step = predict(demand, cluster_view, result.plan);
  result.grid_seconds = result.step.seconds;
  result.num_candidates = grid.num_candidates, result.ruled_out = grid.ruled_out;
  result.gap = std::numeric_limits<double>::infinity();
  result.front.push_back({full_text(result.plan), result.step.seconds, result.peak_memory.bytes});
  return result;
}

}  // namespace

Feasible<SearchResult> find_plan(const Demand& demand, const ClusterView& cluster_view,
                                 const SearchLimits& limits) {
  check(demand);
  if (demand.model.is_custom())
    throw UserError("{} is not a transformer; only transformers can be planned", demand.model.name);
  BoundModel bound_model(demand, cluster_view);
  GridResult grid;
  if (demand.sequence_length <= demand.model.max_positions)
    grid = search_grid(demand, cluster_view, bound_model, limits);
  ImprovedPlan best_plan;
  if (limits.refines) {
    best_plan = refine(demand, cluster_view, bound_model, grid, limits.is_uniform);
  } else if (!grid.evaluated.empty()) {
    const EvaluatedCandidate& first = grid.evaluated.front();
    best_plan = {grid_plan(demand, bound_model, first.candidate), first.seconds, first.objective,
                 first.peak_memory};
  }
  if (best_plan.plan.pipelines.empty()) return infeasible("{}", why_impossible(demand, cluster_view));
  SearchResult result;
  if (grid.evaluated.empty()) return result_beyond_grid(demand, cluster_view, std::move(best_plan), grid);
  result.grid_seconds = grid.evaluated.front().seconds;
  result.plan = std::move(best_plan.plan), result.peak_memory = best_plan.peak_memory,
  result.objective = best_plan.objective;
  result.step = predict(demand, cluster_view, result.plan);
  result.num_candidates = grid.num_candidates, result.num_simulated = grid.num_simulated;
  // An unvisited candidate can be better than the best grid candidate by at most grid.gap. It can gain less
  // relative to the refined plan.
  result.gap = std::max(0.0, (1 + grid.gap) * result.objective / grid.evaluated.front().objective - 1);
  if (grid.gap == 0) result.gap = 0;
  result.ruled_out = grid.ruled_out;
  Explainer(demand, cluster_view, bound_model, result).run(grid, limits.alternatives);
  return result;
}

SearchResult search(const Demand& demand, const ClusterView& cluster_view, const SearchLimits& limits) {
  return value_or_throw(find_plan(demand, cluster_view, limits));
}

}  // namespace optimus
