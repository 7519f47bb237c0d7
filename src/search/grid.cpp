// Best-first search of the grid: shapes first, each opened into its schedules and ZeRO stages when its bound is the least left,
// each of those simulated when its own is.
#include <algorithm>
#include <queue>

#include "plan/validate.h"
#include "search/search.h"

namespace optimus {
namespace {

// Axes that the cost of a layer depends on, and pp and dp.
template <typename See>
void for_shapes(const Demand& demand, const Ground& ground, See&& see) {
  const int num_devices = ground.num_devices();
  std::vector<std::pair<RecomputeMode, bool>> modes;
  for (const RecomputeMode mode : recompute_choices(demand)) modes.emplace_back(mode, false);
  if (demand.constraints.recompute.empty()) modes.emplace_back(RecomputeMode::none, true);
  const std::vector<int> stages = pipeline_choices(demand, num_devices),
                         microbatches = microbatch_choices(demand);
  for (const int tp : tensor_choices(demand, num_devices))
    for (const int cp : context_choices(demand, num_devices / tp))
      for (const int pp : stages) {
        if (static_cast<std::int64_t>(tp) * cp * pp > num_devices) break;
        for (const int microbatch : microbatches)
          for (const int dp : data_choices(demand, num_devices / (tp * cp * pp), microbatch))
            for (const bool is_sequence_parallel : {true, false}) {
              if (is_sequence_parallel && tp == 1) continue;
              for (const auto& [mode, is_fitted] : modes) {
                Candidate c{.pp = pp, .tp = tp, .cp = cp, .dp = dp, .microbatch = microbatch};
                c.sequence_parallel = is_sequence_parallel, c.recompute = mode, c.is_fitted = is_fitted;
                see(c);
              }
            }
      }
}

template <typename See>
void for_variants(const Demand& demand, const Ground& ground, const Candidate& shape, See&& see) {
  const int domain = ground.group_of(0).devices_per_domain;
  const int in_domain = std::max(1, domain / shape.tp);
  for (const ScheduleChoice& schedule : schedule_choices(demand, shape.pp))
    for (const ZeroChoice& zero : zero_choices(demand, shape.dp * shape.cp, in_domain))
      for (const bool is_offloaded : {false, true}) {
        if (is_offloaded && !demand.constraints.offload) continue;
        Candidate c = shape;
        c.schedule = schedule.schedule, c.chunks = schedule.chunks;
        c.zero = zero.zero, c.shard_group = zero.shard_group, c.offload = is_offloaded;
        see(c);
      }
}

struct Node {
  double bound = 0;  // of the objective
  int index = 0;
  bool is_shape = true;
  bool operator<(const Node& other) const { return bound > other.bound; }  // the least on top
};

class GridSearch {
 public:
  GridSearch(const Demand& demand, const Ground& ground, Bounder& bounder, const SearchLimits& limits)
      : demand_(demand), ground_(ground), bounder_(bounder), limits_(limits) {}

  GridResult run() {
    open_shapes();
    double least_left = -1;
    while (!queue_.empty()) {
      const Node next = queue_.top();
      if (next.bound >= best_) break;
      if (result_.num_simulated >= limits_.most_simulations) {
        least_left = next.bound;
        break;
      }
      queue_.pop();
      if (next.is_shape)
        open(shapes_[static_cast<std::size_t>(next.index)]);
      else
        look_at(variants_[static_cast<std::size_t>(next.index)]);
    }
    if (least_left > 0 && best_ > least_left) result_.gap = best_ / least_left - 1;
    std::sort(result_.outcomes.begin(), result_.outcomes.end(),
              [](const Outcome& a, const Outcome& b) { return a.objective < b.objective; });
    return std::move(result_);
  }

 private:
  double rate(const Candidate& c) {
    if (demand_.goal == Goal::throughput) return 1;
    const auto [found, is_new] = rates_.try_emplace(c.num_devices());
    if (is_new) found->second = rate_of(demand_, ground_.map(), c.num_devices());
    return found->second;
  }

  void open_shapes() {
    std::vector<Node> nodes;
    for_shapes(demand_, ground_, [&](const Candidate& shape) {
      ++result_.num_candidates;
      const Bound bound = bounder_.of_any_schedule(shape);
      if (!bound.fits()) {
        ++result_.ruled_out["memory"];
        remember_unfit({most_sharded(demand_, shape),
                        bound.seconds,
                        bound.seconds * rate(shape),
                        {bound.bytes, bound.limit}});
        return;
      }
      nodes.push_back({bound.seconds * rate(shape), static_cast<int>(shapes_.size()), true});
      shapes_.push_back(shape);
    });
    queue_ = std::priority_queue<Node>(std::less<Node>(), std::move(nodes));
  }

  void open(const Candidate& shape) {
    for_variants(demand_, ground_, shape, [&](const Candidate& c) {
      ++result_.num_candidates;
      const Bound bound = bounder_.of(c);
      const double objective = bound.seconds * rate(c);
      if (!bound.fits()) {
        ++result_.ruled_out["memory"];
        return remember_unfit({c, bound.seconds, objective, {bound.bytes, bound.limit}});
      }
      queue_.push({objective, static_cast<int>(variants_.size()), false});
      variants_.push_back(c);
    });
  }

  // Only the quickest are worth a word, and the one that needs least.
  void remember_unfit(const Outcome& outcome) {
    const auto over = [](const Fill& fill) { return fill.bytes - fill.limit; };
    if (!result_.nearest || over(outcome.fill) < over(result_.nearest->fill)) result_.nearest = outcome;
    if (result_.unfit.size() < kMostUnfit) {
      result_.unfit.push_back(outcome);
      return;
    }
    const auto slowest =
        std::max_element(result_.unfit.begin(), result_.unfit.end(),
                         [](const Outcome& a, const Outcome& b) { return a.objective < b.objective; });
    if (outcome.objective < slowest->objective) *slowest = outcome;
  }

  void look_at(const Candidate& c) {
    const std::vector<StageLayers> layers = c.is_fitted ? bounder_.layers_of(c) : std::vector<StageLayers>();
    const Plan plan = c.is_fitted ? plan_of(demand_, c, layers) : plan_of(demand_, c);
    // As much memory as it needs without computing anything again: the same plan as one that was looked at.
    if (c.is_fitted && std::all_of(layers.begin(), layers.end(),
                                   [](const StageLayers& l) { return l.full + l.selective == 0; }))
      return;
    if (const auto problem = problem_in(plan, demand_.model)) {
      ++result_.ruled_out[*problem];
      return;
    }
    Outcome outcome{c, 0, 0, fill_of(demand_, ground_, plan), true};
    if (!outcome.fill.fits()) {
      ++result_.ruled_out["memory"];
      return;
    }
    ++result_.num_simulated;
    outcome.seconds = seconds_of(demand_, ground_, plan);
    outcome.objective = outcome.seconds * rate(c);
    best_ = std::min(best_, outcome.objective);
    result_.outcomes.push_back(outcome);
  }

  static constexpr std::size_t kMostUnfit = 64;
  const Demand& demand_;
  const Ground& ground_;
  Bounder& bounder_;
  const SearchLimits& limits_;
  std::vector<Candidate> shapes_, variants_;
  std::priority_queue<Node> queue_;
  std::map<int, double> rates_;
  double best_ = 1e300;
  GridResult result_;
};

}  // namespace

GridResult search_grid(const Demand& demand, const Ground& ground, Bounder& bounder,
                       const SearchLimits& limits) {
  return GridSearch(demand, ground, bounder, limits).run();
}

std::vector<Candidate> all_candidates(const Demand& demand, const Ground& ground) {
  std::vector<Candidate> all;
  for_shapes(demand, ground, [&](const Candidate& shape) {
    for_variants(demand, ground, shape, [&](const Candidate& c) { all.push_back(c); });
  });
  return all;
}

}  // namespace optimus
