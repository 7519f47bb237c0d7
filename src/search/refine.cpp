// See refine.h.
#include "search/refine.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "plan/validate.h"
#include "search/pipelines.h"
#include "search/stages.h"

namespace optimus {
namespace {

class Refiner {
 public:
  Refiner(const Demand& demand, const Ground& ground, Bounder& bounder)
      : demand_(demand), ground_(ground), bounder_(bounder) {}

  Improved run(const GridResult& grid) {
    const Judged& first = grid.judged.front();
    best_ = {grid_plan(demand_, bounder_, first.candidate), first.seconds, first.objective, first.fill};
    for (const Candidate& c : starts(grid)) {
      if (c.chunks == 1 && c.pp > 1) deal_unevenly(c);
      if (c.pp > 1) place_inside(c);
    }
    for (const Plan& plan : pipelines_of_parts(demand_, ground_, bounder_, grid)) consider(plan);
    return std::move(best_);
  }

 private:
  // The best few that differ in more than their recomputing.
  std::vector<Candidate> starts(const GridResult& grid) const {
    constexpr std::size_t kMost = 4;
    std::set<std::tuple<int, int, int, int, int, int, bool>> seen;
    std::vector<Candidate> result;
    for (const Judged& one : grid.judged) {
      const Candidate& c = one.candidate;
      if (one.objective > 1.1 * grid.judged.front().objective) break;
      if (!seen.emplace(c.pp, c.tp, c.cp, c.dp, c.microbatch, c.zero, c.chunks > 1).second) continue;
      result.push_back(c);
      if (result.size() == kMost) break;
    }
    return result;
  }

  void consider(const Plan& plan) {
    if (problem_in(plan, demand_.model)) return;
    const Fill fill = fill_of(demand_, ground_, plan);
    if (!fill.fits()) return;
    const double seconds = seconds_of(demand_, ground_, plan);
    const double objective = seconds * rate_of(demand_, ground_.map(), num_devices(plan));
    if (objective < best_.objective * (1 - 1e-6)) best_ = {plan, seconds, objective, fill};
  }

  // Embedding and head weigh something, devices differ: stages get layers by what they take.
  void deal_unevenly(Candidate c) {
    for (c.spare = 2; c.spare <= 20; c.spare += 6)
      if (deal_unevenly_with(c)) break;
  }

  // Whether the plan fitted.
  bool deal_unevenly_with(Candidate c) {
    const int layers = static_cast<int>(demand_.model.layers), mean = (layers + c.pp - 1) / c.pp;
    const int most = std::min(layers - c.pp + 1, ground_.is_uniform() ? 2 * mean + 2 : layers);
    c.is_fitted = demand_.constraints.recompute.empty();
    if (c.is_fitted) c.recompute = RecomputeMode::none;
    std::vector<std::vector<double>> times(static_cast<std::size_t>(c.pp));
    std::vector<std::vector<StageLayers>> held(static_cast<std::size_t>(c.pp));
    for (int s = 0; s < c.pp; ++s) {
      const auto at = static_cast<std::size_t>(s);
      times[at].assign(static_cast<std::size_t>(most) + 1, kNever);
      held[at].resize(static_cast<std::size_t>(most) + 1);
      for (int n = 1; n <= most; ++n) {
        const StageLayers mix = c.is_fitted ? bounder_.fitted(c, s, n) : layers_in(c.recompute, n);
        const Bounder::StageWork work = bounder_.work_of(c, s, mix);
        if (!work.fits) break;  // more layers need more
        times[at][static_cast<std::size_t>(n)] = work.forward + work.backward;
        held[at][static_cast<std::size_t>(n)] = mix;
      }
    }
    const double microbatches = count_microbatches(demand_.batch, c.microbatch, c.dp).total();
    const std::vector<int> dealt = deal_layers(times, layers, microbatches);
    if (dealt.empty()) return true;
    std::vector<StageLayers> mixes;
    for (int s = 0; s < c.pp; ++s)
      mixes.push_back(
          held[static_cast<std::size_t>(s)][static_cast<std::size_t>(dealt[static_cast<std::size_t>(s)])]);
    const Plan plan = plan_of(demand_, c, mixes);
    if (!fill_of(demand_, ground_, plan).fits()) return false;
    consider(plan);
    move_layers(c, mixes, held);
    return true;
  }

  // By exact simulation: one layer from one stage to another, as long as that helps.
  void move_layers(const Candidate& c, std::vector<StageLayers> mixes,
                   const std::vector<std::vector<StageLayers>>& held) {
    constexpr int kMostTries = 6;
    const auto count = [&](std::size_t s) { return static_cast<std::size_t>(mixes[s].total()); };
    int tries = 0;
    for (std::size_t to : {mixes.size() - 1, mixes.size() / 2, std::size_t{0}})
      for (std::size_t from : {std::size_t{0}, mixes.size() - 1}) {
        if (from == to || count(from) < 2 || count(to) + 1 >= held[to].size() || tries++ >= kMostTries)
          continue;
        if (held[to][count(to) + 1].total() == 0) continue;
        std::vector<StageLayers> moved = mixes;
        moved[from] = held[from][count(from) - 1], moved[to] = held[to][count(to) + 1];
        const double before = best_.objective;
        consider(plan_of(demand_, c, moved));
        if (best_.objective < before) mixes = moved;
      }
  }

  // Stages next to each other inside a domain, replicas across: for slow reductions' sake the other way round.
  void place_inside(const Candidate& c) {
    const int unit = c.tp * c.cp, domain = ground_.group_of(0).devices_per_domain;
    if (c.dp == 1 || unit * 2 > domain) return;
    Plan plan = grid_plan(demand_, bounder_, c);
    Pipeline& pipeline = plan.pipelines.front();
    for (int s = 0; s < c.pp; ++s)
      for (int d = 0; d < c.dp; ++d)
        for (int i = 0; i < unit; ++i)
          pipeline.stages[static_cast<std::size_t>(s)].devices[static_cast<std::size_t>(d * unit + i)] =
              (d * c.pp + s) * unit + i;
    consider(plan);
  }

  const Demand& demand_;
  const Ground& ground_;
  Bounder& bounder_;
  Improved best_;
};

}  // namespace

Plan grid_plan(const Demand& demand, Bounder& bounder, const Candidate& c) {
  return c.is_fitted ? plan_of(demand, c, bounder.layers_of(c)) : plan_of(demand, c);
}

Candidate settled(const Demand& demand, const Ground& ground, Bounder& bounder, Candidate c) {
  if (!c.is_fitted) return c;
  for (const int spare : {2, 5, 10, 20, 40, 80}) {
    c.spare = spare;
    if (fill_of(demand, ground, grid_plan(demand, bounder, c)).fits()) break;
  }
  return c;
}

Improved refine(const Demand& demand, const Ground& ground, Bounder& bounder, const GridResult& grid) {
  return Refiner(demand, ground, bounder).run(grid);
}

}  // namespace optimus
