// Implements search.h: the grid search, its refinement, and the alternatives with the reasons why they are
// worse.
#include "search/search.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "plan/describe.h"
#include "plan/validate.h"
#include "search/failures.h"
#include "search/reason.h"
#include "search/refine.h"

namespace optimus {
namespace {

// The axes in which a user would distinguish two candidates.
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
      return a.zero != b.zero || a.buddy != b.buddy;
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

bool is_called_the_same(const Candidate& a, const Candidate& b) {
  return a.chunks == b.chunks &&
         std::none_of(std::begin(kAxes), std::end(kAxes), [&](Axis axis) { return differs(a, b, axis); });
}

// The best candidate with a single axis changed; the number of replicas follows.
std::vector<Candidate> neighbours(const Demand& demand, const Ground& ground, const Candidate& best) {
  std::vector<Candidate> all;
  const auto add = [&](auto&& change) {
    Candidate c = best;
    change(c);
    if (c.tp < 1 || c.pp < 1 || c.cp < 1 || c.microbatch < 1 || c.zero < 0 || c.zero > 3) return;
    if (c.pp > demand.model.layers || c.tp > most_tensor_parts(demand.model)) return;
    if (c.ep < 1 || (demand.model.is_mixture() && demand.model.mixture.experts % c.ep != 0)) return;
    if (c.cp > demand.sequence_length || c.microbatch > demand.batch) return;
    const std::vector<int> replicas =
        data_choices(demand, ground.num_devices() / (c.tp * c.cp * c.pp), c.microbatch, replica_step(c));
    if (replicas.empty()) return;
    c.dp = replicas.back();
    c.sequence_parallel = (c.sequence_parallel || demand.model.is_mixture()) && c.tp > 1;
    if (c.pp * c.chunks > demand.model.layers || c.pp == 1) c.schedule = Schedule::one_f_one_b;
    if (c.schedule != Schedule::interleaved) c.chunks = 1;
    if (!has_copies(demand, c)) c.zero = 0;
    if (c.zero == 0 || (c.shard_group > 0 && c.dp * c.cp % c.shard_group != 0)) c.shard_group = 0;
    if (c.zero == 0 || c.buddy % std::max(1, num_shards(c)) == 0) c.buddy = 0;
    if (!(c == best) && std::find(all.begin(), all.end(), c) == all.end()) all.push_back(c);
  };
  add([](Candidate& c) { c.tp *= 2, c.sequence_parallel = true; });
  add([](Candidate& c) { c.tp /= 2; });
  add([](Candidate& c) { c.pp *= 2; });
  add([](Candidate& c) { c.pp /= 2; });
  add([](Candidate& c) { c.zero = c.zero == 3 ? 1 : 3, c.shard_group = 0; });
  add([](Candidate& c) { c.zero = c.zero == 1 ? 2 : 1, c.shard_group = 0; });
  add([](Candidate& c) { c.buddy = 0; });
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
  return all;
}

class Explainer {
 public:
  Explainer(const Demand& demand, const Ground& ground, Bounder& bounder, SearchResult& result)
      : demand_(demand), ground_(ground), bounder_(bounder), result_(result) {}

  void run(const GridResult& grid, int most) {
    const Candidate& best = grid.judged.front().candidate;
    std::vector<Judged> others(grid.judged.begin() + 1, grid.judged.end());
    others.insert(others.end(), grid.unfit.begin(), grid.unfit.end());
    for (const Candidate& c : neighbours(demand_, ground_, best)) look_at(c, others);
    std::stable_sort(others.begin(), others.end(), [](const Judged& a, const Judged& b) {
      return std::pair(!a.fill.fits(), a.objective) < std::pair(!b.fill.fits(), b.objective);
    });
    std::vector<Candidate> taken;
    for (const Axis axis : kAxes) {
      const auto is_new = [&](const Candidate& c) {
        return std::none_of(taken.begin(), taken.end(),
                            [&](const Candidate& t) { return is_called_the_same(c, t); });
      };
      const auto found = std::find_if(others.begin(), others.end(), [&](const Judged& o) {
        return differs(best, o.candidate, axis) && is_new(o.candidate);
      });
      if (found == others.end() || std::ssize(taken) == most) continue;
      taken.push_back(found->candidate);
      add(*found);
    }
    std::stable_sort(result_.alternatives.begin(), result_.alternatives.end(),
                     [](const Alternative& a, const Alternative& b) {
                       return std::pair(!a.fill.fits(), a.objective) < std::pair(!b.fill.fits(), b.objective);
                     });
    make_front(grid.judged, others);
  }

 private:
  void look_at(const Candidate& c, std::vector<Judged>& others) {
    if (std::any_of(others.begin(), others.end(), [&](const Judged& o) { return o.candidate == c; })) return;
    const Plan plan = grid_plan(demand_, bounder_, c);
    if (problem_in(plan, demand_.model)) return;
    Judged one{c, 0, 0, fill_of(demand_, ground_, plan), false};
    one.seconds = one.fill.fits() ? bounder_.of(c).seconds : 0;
    if (one.seconds == 0) one.seconds = bounder_.of_any_schedule(c).seconds;
    one.objective = one.seconds * weight_of(demand_, ground_.map(), c);
    others.push_back(one);
  }

  // Candidates that have only a bound are simulated here.
  void add(Judged& one) {
    Alternative other{grid_plan(demand_, bounder_, one.candidate), one.seconds, one.objective, one.fill, ""};
    if (one.fill.fits()) {
      const StepPrediction step = predict(demand_, ground_, other.plan, false);
      result_.num_simulated += one.is_simulated ? 0 : 1;
      one.is_simulated = true;
      one.objective *= step.seconds / one.seconds, one.seconds = step.seconds;
      other.seconds = one.seconds, other.objective = one.objective;
      other.why = one.objective < result_.objective * (1 - 1e-9)
                      ? "excluded by the constraints"
                      : why_slower(demand_, ground_, result_.plan, result_.step, other.plan, step);
    } else {
      other.why = why_unfit(one.fill);
    }
    result_.alternatives.push_back(std::move(other));
  }

  // Starting with the plan: every candidate that needs less memory than all faster ones.
  void make_front(std::vector<Judged> all, const std::vector<Judged>& others) {
    all.insert(all.end(), others.begin(), others.end());
    std::sort(all.begin(), all.end(), [](const Judged& a, const Judged& b) { return a.seconds < b.seconds; });
    result_.front.push_back({full_text(result_.plan), result_.step.seconds, result_.fill.bytes});
    for (const Judged& one : all) {
      // Differences below 1 % of memory are not listed.
      if (!one.is_simulated || !one.fill.fits() || one.fill.bytes > 0.99 * result_.front.back().bytes ||
          one.seconds < result_.step.seconds)
        continue;
      result_.front.push_back(
          {full_text(grid_plan(demand_, bounder_, one.candidate)), one.seconds, one.fill.bytes});
    }
  }

  const Demand& demand_;
  const Ground& ground_;
  Bounder& bounder_;
  SearchResult& result_;
};

// No grid candidate fits: no bound is known for a plan found beyond the grid.
SearchResult only_plan(const Demand& demand, const Ground& ground, Improved best, const GridResult& grid) {
  SearchResult result;
  result.plan = std::move(best.plan), result.fill = best.fill, result.objective = best.objective;
  result.step = predict(demand, ground, result.plan);
  result.grid_seconds = result.step.seconds;
  result.num_candidates = grid.num_candidates, result.ruled_out = grid.ruled_out;
  result.gap = std::numeric_limits<double>::infinity();
  result.front.push_back({full_text(result.plan), result.step.seconds, result.fill.bytes});
  return result;
}

}  // namespace

SearchResult search(const Demand& demand, const Ground& ground, const SearchLimits& limits) {
  check(demand);
  if (demand.model.is_custom())
    throw UserError("{} is not a transformer; only transformers can be planned", demand.model.name);
  Bounder bounder(demand, ground);
  GridResult grid;
  if (demand.sequence_length <= demand.model.max_positions)
    grid = search_grid(demand, ground, bounder, limits);
  Improved best;
  if (limits.refines) {
    best = refine(demand, ground, bounder, grid, limits.is_uniform);
  } else if (!grid.judged.empty()) {
    const Judged& first = grid.judged.front();
    best = {grid_plan(demand, bounder, first.candidate), first.seconds, first.objective, first.fill};
  }
  if (best.plan.pipelines.empty()) throw UserError("{}", why_impossible(demand, ground));
  SearchResult result;
  if (grid.judged.empty()) return only_plan(demand, ground, std::move(best), grid);
  result.grid_seconds = grid.judged.front().seconds;
  result.plan = std::move(best.plan), result.fill = best.fill, result.objective = best.objective;
  result.step = predict(demand, ground, result.plan);
  result.num_candidates = grid.num_candidates, result.num_simulated = grid.num_simulated;
  // Unvisited candidates can be better only by this much; the refined plan is that much closer to them.
  result.gap = std::max(0.0, (1 + grid.gap) * result.objective / grid.judged.front().objective - 1);
  if (grid.gap == 0) result.gap = 0;
  result.ruled_out = grid.ruled_out;
  Explainer(demand, ground, bounder, result).run(grid, limits.alternatives);
  return result;
}

}  // namespace optimus
