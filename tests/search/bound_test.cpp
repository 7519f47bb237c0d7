#include "search/bound.h"

#include <gtest/gtest.h>

#include "plan/validate.h"
#include "search/evaluate.h"
#include "search/random_demand.h"
#include "search/refine.h"

#include "search/fitted_plan.h"

namespace optimus {
namespace {

// Bounds are admissible: no candidate takes less time or memory than its bound.
TEST(Bound, NeverExceedsSimulation) {
  const int problems = is_long() ? 2000 : 60, samples = 12;
  double tightest = 0, sum = 0;
  int number = 0;
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i < problems / 60 + (problems < 60); ++i) {
      const auto problem = random_problem(pick(0, 1) ? 16 : 64, 12);
      const Demand demand = problem->demand();
      BoundModel bound_model(demand, *problem->cluster_view);
      const std::vector<Candidate> all = all_candidates(demand, *problem->cluster_view);
      if (all.empty()) continue;
      for (int sample = 0; sample < samples; ++sample) {
        const Candidate& c = all[static_cast<std::size_t>(pick(0, static_cast<int>(all.size()) - 1))];
        const Plan plan = grid_plan(demand, bound_model, c);
        if (find_problem(plan, problem->model)) continue;
        const Bound bound = bound_model.bound(c), any = bound_model.bound_any_schedule(c);
        const double seconds = seconds_of(demand, *problem->cluster_view, plan);
        const PeakMemory peak_memory = peak_memory_of(demand, *problem->cluster_view, plan);
        // The stage with the least headroom may be another one, so the excess over the limit is compared.
        const double over = peak_memory.bytes - peak_memory.limit + 1;
        const bool needs_less =
            bound.bytes - bound.limit > over || (!any.fits() && any.bytes - any.limit > over);
        if (bound.seconds > seconds || any.seconds > seconds || needs_less) {
          const HardwareProfile& profile = problem->cluster.profile();
          const std::string words = fmt::format(
              "{} x{} on {} ({} missing, {} slow), {} {}, batch {} seq {}: pp{} tp{} cp{} dp{} ep{} mb{} "
              "zero{} "
              "group{} sp{} {} "
              "chunks{} {} fitted{}: any {} bound {} simulated {}; bytes {} {} of {}",
              problem->model.name, problem->model.layers, problem->cluster.name(),
              profile.missing_devices.size(), profile.speed_factors.size(), demand.software.name,
              text(demand.precision), problem->batch, problem->sequence_length, c.pp, c.tp, c.cp, c.dp, c.ep,
              c.microbatch, c.zero, c.shard_group, c.sequence_parallel, text(c.schedule), c.chunks,
              text(c.recompute), c.is_fitted, any.seconds, bound.seconds, seconds, bound.bytes,
              peak_memory.bytes, peak_memory.limit);
          RC_FAIL(words);
        }
        tightest = std::max(tightest, bound.seconds / seconds), sum += bound.seconds / seconds, ++number;
      }
    }
  }));
  // A bound far below the simulation would be useless.
  EXPECT_GT(sum / number, 0.75) << "mean of bound / simulated over " << number << " candidates";
  RecordProperty("mean_bound", std::to_string(sum / number));
}

}  // namespace
}  // namespace optimus
