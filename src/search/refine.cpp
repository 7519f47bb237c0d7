// See refine.h.
#include "search/refine.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "search/fitted_plan.h"
#include "search/mixed.h"
#include "search/pipelines.h"
#include "search/stages.h"

namespace optimus {
namespace {

class Refiner {
 public:
  Refiner(const Demand& demand, const ClusterView& cluster_view, BoundModel& bound_model)
      : demand_(demand),
        cluster_view_(cluster_view),
        bound_model_(bound_model),
        improver_(demand, cluster_view) {}

  ImprovedPlan run(const GridResult& grid, bool is_uniform) {
    if (!grid.evaluated.empty()) {
      const EvaluatedCandidate& first = grid.evaluated.front();
      improver_.start_with({grid_plan(demand_, bound_model_, first.candidate), first.seconds, first.objective,
                            first.peak_memory});
    }
    for (const Candidate& c : refinement_starts(grid)) {
      if (c.pp == 1) continue;
      if (c.chunks == 1)
        split_unevenly(c);
      else
        split_chunks_unevenly(c);
      place_stages_in_domain(c);
    }
    if (is_uniform) return improver_.best();
    const bool may_differ = demand_.software.runs_programs;  // other trainers require a single strategy
    if (may_differ) fit_by_sharding_or_grouping(improver_, demand_, bound_model_, grid);
    if (grid.evaluated.empty()) return improver_.best();
    for (const Plan& plan : multi_pipeline_plans(demand_, cluster_view_, bound_model_, grid))
      improver_.consider(plan);
    if (may_differ) mix_layers(improver_, demand_, cluster_view_);
    return improver_.best();
  }

 private:
  // A few of the best candidates, which differ from each other in more than their recompute mode.
  std::vector<Candidate> refinement_starts(const GridResult& grid) const {
    constexpr std::size_t kMaxCount = 3;
    std::set<std::tuple<int, int, int, int, int, int, int, bool>> visited;
    std::vector<Candidate> result;
    for (const EvaluatedCandidate& entry : grid.evaluated) {
      const Candidate& c = entry.candidate;
      if (entry.objective > 1.05 * grid.evaluated.front().objective) break;
      if (!visited.emplace(c.pp, c.tp, c.cp, c.ep, c.dp, c.microbatch, c.zero, c.chunks > 1).second) continue;
      result.push_back(c);
      if (result.size() == kMaxCount) break;
    }
    return result;
  }

  // Distributes layers over stages according to cost, because embedding and head take time and devices may
  // differ.
  void split_unevenly(Candidate c) {
    for (c.memory_margin = 2; c.memory_margin <= 20; c.memory_margin += 6)
      if (try_uneven_split(c)) break;
  }

  // Returns whether the plan fits, or whether no distribution exists at all.
  bool try_uneven_split(Candidate c) {
    const int layers = static_cast<int>(demand_.model.layers), mean = (layers + c.pp - 1) / c.pp;
    const int max_layers = std::min(layers - c.pp + 1, cluster_view_.is_uniform() ? 2 * mean + 2 : layers);
    c.is_fitted = demand_.constraints.recompute.empty();
    if (c.is_fitted) c.recompute = RecomputeMode::none;
    std::vector<std::vector<double>> times(static_cast<std::size_t>(c.pp));
    std::vector<std::vector<StageLayers>> layer_mixes(static_cast<std::size_t>(c.pp));
    for (int s = 0; s < c.pp; ++s) {
      const auto stage_index = static_cast<std::size_t>(s);
      times[stage_index].assign(static_cast<std::size_t>(max_layers) + 1, kInfeasible);
      layer_mixes[stage_index].resize(static_cast<std::size_t>(max_layers) + 1);
      for (int n = 1; n <= max_layers; ++n) {
        const StageLayers mix =
            c.is_fitted ? bound_model_.fitted_layers(c, s, n) : uniform_layers(c.recompute, n);
        const BoundModel::StageWork stage_work = bound_model_.work_of(c, s, mix);
        if (!stage_work.fits) break;  // more layers need more memory
        times[stage_index][static_cast<std::size_t>(n)] = stage_work.forward + stage_work.backward;
        layer_mixes[stage_index][static_cast<std::size_t>(n)] = mix;
      }
    }
    const double microbatches = count_microbatches(demand_.batch, c.microbatch, c.dp).total();
    const std::vector<int> layers_of_stages = distribute_layers(times, layers, microbatches);
    if (layers_of_stages.empty()) return true;
    std::vector<StageLayers> mixes;
    for (int s = 0; s < c.pp; ++s)
      mixes.push_back(layer_mixes[static_cast<std::size_t>(s)]
                                 [static_cast<std::size_t>(layers_of_stages[static_cast<std::size_t>(s)])]);
    const Plan plan = plan_of(demand_, c, mixes);
    if (!peak_memory_of(demand_, cluster_view_, plan).fits()) return false;
    improver_.consider(plan);
    move_layers(c, mixes, layer_mixes);
    return true;
  }

  // Moves single layers between stages as long as this improves the simulated objective.
  void move_layers(const Candidate& c, std::vector<StageLayers> mixes,
                   const std::vector<std::vector<StageLayers>>& layer_mixes) {
    constexpr int kMaxTries = 4;
    const auto count = [&](std::size_t s) { return static_cast<std::size_t>(mixes[s].total()); };
    int tries = 0;
    for (std::size_t to : {mixes.size() - 1, mixes.size() / 2, std::size_t{0}})
      for (std::size_t from : {std::size_t{0}, mixes.size() - 1}) {
        if (from == to || count(from) < 2 || count(to) + 1 >= layer_mixes[to].size() || tries++ >= kMaxTries)
          continue;
        if (layer_mixes[to][count(to) + 1].total() == 0) continue;
        std::vector<StageLayers> changed = mixes;
        changed[from] = layer_mixes[from][count(from) - 1], changed[to] = layer_mixes[to][count(to) + 1];
        if (improver_.consider(plan_of(demand_, c, changed))) mixes = changed;
      }
  }

  // Gives chunks different lengths. The stages with the embedding or the head have fewer layers, and fewest
  // in the chunk that contains the embedding or the head.
  void split_chunks_unevenly(const Candidate& c) {
    const auto begin = static_cast<int>(std::lround(weight_of_ends(c, 0))),
               end = static_cast<int>(std::lround(weight_of_ends(c, c.pp - 1)));
    std::set<std::vector<int>> tried_parts;
    for (const auto& [first, last] : {std::pair{begin, end}, {begin, end - 1}, {0, 1}}) {
      const std::vector<int> parts = uneven_parts(c, first, std::max(0, last));
      if (!parts.empty() && tried_parts.insert(parts).second) improver_.consider(plan_with_parts(c, parts));
    }
  }

  // The time that the embedding or the head adds to a stage, relative to the time of one layer.
  double weight_of_ends(Candidate c, int stage) {
    c.chunks = 1, c.schedule = Schedule::one_f_one_b, c.is_fitted = false;
    const auto seconds = [&](int s, int n) {
      const BoundModel::StageWork stage_work = bound_model_.work_of(c, s, uniform_layers(c.recompute, n));
      return stage_work.forward + stage_work.backward;
    };
    const double layer = seconds(stage, 2) - seconds(stage, 1);
    return std::max(0.0, seconds(stage, 1) / layer - 1);
  }

  // The number of layers in each chunk if the first stage has `first` layers fewer and the last stage has
  // `last` layers fewer than the other stages. Empty if this is impossible.
  std::vector<int> uneven_parts(const Candidate& c, int first, int last) const {
    const int layers = static_cast<int>(demand_.model.layers), padded_layers = layers + first + last;
    std::vector<int> parts(static_cast<std::size_t>(c.pp * c.chunks));
    for (int s = 0; s < c.pp; ++s) {
      // The remainder is given to the stages with neither embedding nor head.
      const int extra = padded_layers % c.pp, order_index = c.pp > 2 ? (s + c.pp - 1) % c.pp : s;
      int total = padded_layers / c.pp + (order_index < extra ? 1 : 0);
      if (s == 0) total -= first;
      if (s + 1 == c.pp) total -= last;
      if (total < c.chunks) return {};
      for (int chunk = 0; chunk < c.chunks; ++chunk) {
        // The chunk that contains embedding or head is the shortest.
        const int size_rank = s == 0 ? c.chunks - 1 - chunk : chunk;
        parts[static_cast<std::size_t>(chunk * c.pp + s)] = split_layers(total, c.chunks, size_rank);
      }
    }
    return parts;
  }

  Plan plan_with_parts(const Candidate& c, const std::vector<int>& parts) {
    std::vector<StageLayers> mixes;
    for (int s = 0; s < c.pp; ++s) {
      int total = 0;
      for (int chunk = 0; chunk < c.chunks; ++chunk)
        total += parts[static_cast<std::size_t>(chunk * c.pp + s)];
      mixes.push_back(c.is_fitted ? bound_model_.fitted_layers(c, s, total)
                                  : uniform_layers(c.recompute, total));
    }
    return plan_of(demand_, c, mixes, parts);
  }

  // Places consecutive stages inside a domain and replicas across domains. The default placement is the
  // opposite, which favors gradient reductions.
  void place_stages_in_domain(const Candidate& c) {
    const int unit = c.tp * c.cp, domain = cluster_view_.group_of(0).devices_per_domain;
    if (c.dp == 1 || unit * 2 > domain) return;
    Plan plan = grid_plan(demand_, bound_model_, c);
    Pipeline& pipeline = plan.pipelines.front();
    for (int s = 0; s < c.pp; ++s)
      for (int d = 0; d < c.dp; ++d)
        for (int i = 0; i < unit; ++i)
          pipeline.stages[static_cast<std::size_t>(s)].devices[static_cast<std::size_t>(d * unit + i)] =
              (d * c.pp + s) * unit + i;
    improver_.consider(plan);
  }

  const Demand& demand_;
  const ClusterView& cluster_view_;
  BoundModel& bound_model_;
  PlanImprover improver_;
};

}  // namespace

ImprovedPlan refine(const Demand& demand, const ClusterView& cluster_view, BoundModel& bound_model,
                    const GridResult& grid, bool is_uniform) {
  return Refiner(demand, cluster_view, bound_model).run(grid, is_uniform);
}

}  // namespace optimus
