// See reason.h.
#include "search/reason.h"

#include <algorithm>

#include "plan/describe.h"
#include "search/failures.h"
#include "search/grid.h"
#include "search/sizing.h"

namespace optimus {
namespace {

std::string bytes_text(double bytes) { return text(Bytes(static_cast<std::int64_t>(bytes))); }

const LayerStrategy& strategy_of_first_layer(const Plan& plan) {
  return plan.pipelines.front().stages.front().chunks.front().runs.front().strategy;
}

// The number of recomputed layers per pipeline. A selectively recomputed layer counts as half a layer.
double num_recomputed_layers(const Plan& plan) {
  double sum = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const Chunk& chunk : stage.chunks)
        for (const BlockRun& run : chunk.runs)
          sum += run.count * 0.5 * static_cast<int>(run.strategy.recompute);
  return sum / static_cast<double>(plan.pipelines.size());
}

}  // namespace

std::string why_unfit(const PeakMemory& peak_memory) {
  if (peak_memory.bytes <= peak_memory.limit)
    return fmt::format("the offloaded state exceeds a node's host memory: needs {}, limit {}",
                       bytes_text(peak_memory.host_bytes), bytes_text(peak_memory.host_limit));
  return fmt::format("does not fit: needs {}, limit {}", bytes_text(peak_memory.bytes),
                     bytes_text(peak_memory.limit));
}

std::string why_slower(const Demand& demand, const ClusterView& cluster_view, const Plan& best,
                       const StepPrediction& best_step, const Plan& other, const StepPrediction& other_step) {
  const TimeSplit &a = best_step.split, &b = other_step.split;
  const auto seconds_text = [](double seconds) { return text(Seconds(seconds)); };
  const LayerStrategy& other_strategy = strategy_of_first_layer(other);
  struct Cause {
    double seconds;
    std::string clause;
  };
  const int domain = cluster_view.group_of(0).devices_per_domain;
  const int num_used_devices = num_devices(best), num_other_devices = num_devices(other);
  if (demand.goal != Goal::throughput && num_other_devices > num_used_devices &&
      other_step.seconds <= best_step.seconds)
    return fmt::format("{} devices instead of {} would save only {}", num_other_devices, num_used_devices,
                       seconds_text(best_step.seconds - other_step.seconds));
  if (demand.failures.mtbf.value > 0 && survives_device_loss(best) && !survives_device_loss(other))
    return fmt::format("losing a device loses state, so failures cost {} instead of {}",
                       percent(failure_slowdown(demand.failures, num_other_devices, false) - 1),
                       percent(failure_slowdown(demand.failures, num_used_devices, true) - 1));
  std::vector<Cause> causes = {
      {b.tensor - a.tensor,
       fmt::format("{}{} more tensor-parallel communication",
                   other_strategy.tp > domain
                       ? fmt::format("tp {} crosses domains of {}: ", other_strategy.tp, domain)
                       : "",
                   seconds_text(b.tensor - a.tensor))},
      {b.bubble - a.bubble, fmt::format("bubble {} instead of {}", percent(b.bubble / other_step.seconds),
                                        percent(a.bubble / best_step.seconds))},
      {b.data - a.data,
       fmt::format("{} more waiting for data-parallel gradients and weights", seconds_text(b.data - a.data))},
      {b.pipeline - a.pipeline,
       fmt::format("{} more for messages between stages", seconds_text(b.pipeline - a.pipeline))},
      {b.optimizer - a.optimizer,
       fmt::format("optimizer updates take {} longer", seconds_text(b.optimizer - a.optimizer))},
      {b.host - a.host,
       fmt::format("{} more host time because slots are smaller", seconds_text(b.host - a.host))}};
  const bool recomputes_more = num_recomputed_layers(other) > num_recomputed_layers(best);
  causes.push_back(
      {b.compute - a.compute,
       recomputes_more ? fmt::format("recomputes {} of work", seconds_text(b.compute - a.compute))
       : num_other_devices < num_used_devices
           ? fmt::format("leaves {} of {} devices idle", cluster_view.num_devices() - num_other_devices,
                         cluster_view.num_devices())
           : fmt::format("less efficient GEMMs: {} more compute", seconds_text(b.compute - a.compute))});
  const auto largest_cause = std::max_element(
      causes.begin(), causes.end(), [](const Cause& x, const Cause& y) { return x.seconds < y.seconds; });
  if (largest_cause->seconds <= 0) return "equally fast, and not simpler";
  return largest_cause->clause;
}

namespace {

struct Relaxation {
  std::string description;
  Constraints constraints;
};

std::vector<Relaxation> relaxations(const Demand& demand) {
  std::vector<Relaxation> result;
  const auto add = [&](std::string description, auto&& change) {
    Constraints c = demand.constraints;
    change(c);
    result.push_back({std::move(description), std::move(c)});
  };
  const Constraints& c = demand.constraints;
  if (!c.recompute.empty() && c.recompute != "full")
    add("--recompute full", [](Constraints& x) { x.recompute = "full"; });
  if (c.no_zero3 || (c.zero && c.zero->max < 3))
    add("--zero 3", [](Constraints& x) { x.no_zero3 = false, x.zero.reset(); });
  if (c.microbatch && c.microbatch->min > 1)
    add("--microbatch 1", [](Constraints& x) { x.microbatch = Range{1, 1}; });
  if (c.max_memory) add("without --max-memory", [](Constraints& x) { x.max_memory.reset(); });
  for (const auto& [name, member] : {std::pair{"tp", &Constraints::tp},
                                     {"pp", &Constraints::pp},
                                     {"cp", &Constraints::cp},
                                     {"ep", &Constraints::ep},
                                     {"dp", &Constraints::dp}})
    if (c.*member)
      add(fmt::format("a different --{}", name), [m = member](Constraints& x) { (x.*m).reset(); });
  if (!c.schedule.empty() || c.chunks)
    add("a different --schedule", [](Constraints& x) { x.schedule.clear(), x.chunks.reset(); });
  if (!c.offload && demand.supports_offload) add("--offload", [](Constraints& x) { x.offload = true; });
  return result;
}

std::string find_expert_contradiction(const Demand& demand, int num_available) {
  const Constraints& c = demand.constraints;
  if (!c.ep) return "";
  if (!demand.model.is_mixture())
    return c.ep->min > 1 ? fmt::format("--ep {}: {} has no experts; use 1", text(*c.ep), demand.model.name)
                         : "";
  const std::int64_t experts = demand.model.mixture.experts;
  std::vector<std::string> divisors;
  bool has_one = false;
  for (int ep = 1; ep <= experts; ++ep)
    if (experts % ep == 0) divisors.push_back(std::to_string(ep)), has_one |= c.ep->contains(ep);
  if (!has_one)
    return fmt::format("--ep: expected a divisor of the {} experts of {}, got {}; use one of {}", experts,
                       demand.model.name, text(*c.ep), join(divisors, ", "));
  const int stages = c.pp ? std::max(1, c.pp->min) : 1;
  if (static_cast<std::int64_t>(stages) * c.ep->min > num_available)
    return fmt::format("--ep {} needs {} devices{}, but {} has {}; add devices or lower the sizes",
                       text(*c.ep), stages * c.ep->min,
                       stages > 1 ? fmt::format(" for {} stages", stages) : "", demand.cluster.name(),
                       num_available);
  return "";
}

// Describes a contradiction between the numbers of the demand that does not depend on memory. Empty if there
// is none.
std::string find_contradiction(const Demand& demand, const ClusterView& cluster_view) {
  const Constraints& c = demand.constraints;
  const int num_available = cluster_view.num_devices();
  const auto min_value = [](const std::optional<Range>& range) {
    return range ? std::max(1, range->min) : 1;
  };
  const std::int64_t num_needed =
      static_cast<std::int64_t>(min_value(c.tp)) * min_value(c.pp) * min_value(c.cp) * min_value(c.dp);
  if (const std::string text = find_expert_contradiction(demand, num_available); !text.empty()) return text;
  if (num_needed > num_available) {
    std::string product;
    for (const auto& [name, range] : {std::pair{"tp", c.tp}, {"pp", c.pp}, {"cp", c.cp}, {"dp", c.dp}})
      if (min_value(range) > 1)
        product += fmt::format("{}{} {}", product.empty() ? "" : " x ", name, min_value(range));
    return fmt::format("{} needs {} devices, but {} has {}; add devices or lower the sizes", product,
                       num_needed, demand.cluster.name(), num_available);
  }
  const std::int64_t heads = max_tensor_parts(demand.model);
  if (min_value(c.tp) > heads)
    return fmt::format("--tp {}: {} has {} heads, and each device needs at least one; use at most {}",
                       text(*c.tp), demand.model.name, demand.model.heads, heads);
  if (min_value(c.pp) > demand.model.layers)
    return fmt::format("--pp {}: {} has {} layers, and each stage needs at least one; use at most {}",
                       text(*c.pp), demand.model.name, demand.model.layers, demand.model.layers);
  if (min_value(c.microbatch) > demand.batch)
    return fmt::format("--microbatch {} is larger than the batch of {} sequences", text(*c.microbatch),
                       demand.batch);
  if (demand.sequence_length > demand.model.max_positions)
    return fmt::format("--seq {} is longer than the {} positions of {}; use at most that many",
                       demand.sequence_length, demand.model.max_positions, demand.model.name);
  return "";
}

}  // namespace

std::string why_impossible(const Demand& demand, const ClusterView& cluster_view) {
  if (const std::string text = find_contradiction(demand, cluster_view); !text.empty()) return text;
  BoundModel bound_model(demand, cluster_view);
  const std::optional<EvaluatedCandidate> nearest =
      search_grid(demand, cluster_view, bound_model, {.max_simulations = 1}).nearest;
  std::vector<std::string> suggestions;
  for (const Relaxation& relaxation : relaxations(demand)) {
    Demand relaxed_demand = demand;
    relaxed_demand.constraints = relaxation.constraints;
    if (is_possible(relaxed_demand, cluster_view)) suggestions.push_back(relaxation.description);
    if (suggestions.size() == 2) break;
  }
  if (!nearest)
    return fmt::format("no plan for {} on {} meets these constraints{}", demand.model.name,
                       demand.cluster.name(),
                       suggestions.empty() ? "" : "; try " + join(suggestions, " or "));
  if (const int num_needed = demand.shares_memory ? 0 : devices_to_fit(demand); num_needed > 0)
    suggestions.insert(suggestions.begin(), fmt::format("{} devices ({} more)", num_needed,
                                                        num_needed - cluster_view.num_devices()));
  return fmt::format("{} does not fit into the memory of {}: {} needs {} per device, but {} is available; {}",
                     demand.model.name, demand.cluster.name(),
                     short_text(plan_of(demand, nearest->candidate)), bytes_text(nearest->peak_memory.bytes),
                     bytes_text(nearest->peak_memory.limit),
                     suggestions.empty() ? "use devices with more memory or shorter sequences"
                                         : "try " + join(suggestions, " or "));
}

}  // namespace optimus
