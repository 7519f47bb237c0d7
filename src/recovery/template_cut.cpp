// See template_cut.h.
#include "recovery/template_cut.h"

#include <algorithm>

#include "search/evaluate.h"
#include "search/sizing.h"
#include "search/stages.h"

namespace optimus {
namespace {

// The planner's input for one pipeline on a given number of devices: a cluster of that size, and the demand
// on it.
struct TemplateInputs {
  TemplateInputs(const Demand& base, int num_devices, int microbatch, int stages)
      : cluster(with_devices(base.cluster, num_devices)),
        demand{base.model, cluster, base.software, base.constants},
        cluster_view(cluster) {
    // Enough micro-batches to fill the pipeline twice. More of them would not increase the number in flight.
    demand.batch = static_cast<std::int64_t>(microbatch) * 2 * stages;
    demand.sequence_length = base.sequence_length, demand.precision = base.precision;
    demand.constraints = base.constraints;
  }
  Cluster cluster;
  Demand demand;
  ClusterView cluster_view;
};

struct StageTable {
  std::vector<std::vector<double>> seconds;           // [stage][layers]
  std::vector<std::vector<StageLayers>> layer_mixes;  // [stage][layers]: recompute modes of the layers
};

StageTable stage_table(const Demand& demand, BoundModel& bound_model, const Candidate& c) {
  const int layers = static_cast<int>(demand.model.layers), max_layers = layers - c.pp + 1;
  StageTable table;
  for (int s = 0; s < c.pp; ++s) {
    std::vector<double> seconds(static_cast<std::size_t>(max_layers) + 1, kInfeasible);
    std::vector<StageLayers> layer_mixes(seconds.size());
    for (int n = 1; n <= max_layers; ++n) {
      const StageLayers mix =
          c.is_fitted ? bound_model.fitted_layers(c, s, n) : uniform_layers(c.recompute, n);
      const BoundModel::StageWork stage_work = bound_model.work_of(c, s, mix);
      if (!stage_work.fits) break;  // more layers need more memory
      seconds[static_cast<std::size_t>(n)] = stage_work.forward + stage_work.backward;
      layer_mixes[static_cast<std::size_t>(n)] = mix;
    }
    table.seconds.push_back(std::move(seconds)), table.layer_mixes.push_back(std::move(layer_mixes));
  }
  return table;
}

// Whether the plan's pipeline fits in memory if there is a second pipeline. Gradients are then also reduced
// between pipelines, which needs buffers and communicators.
bool fits_beside_another(const TemplateInputs& inputs, Plan plan) {
  Pipeline second = plan.pipelines.front();
  for (Stage& stage : second.stages)
    for (int& device : stage.devices) device += inputs.cluster.num_devices();
  plan.pipelines.push_back(std::move(second));
  plan.batch *= 2;
  const Cluster double_cluster = with_devices(inputs.cluster, 2 * inputs.cluster.num_devices());
  Demand demand{inputs.demand.model, double_cluster, inputs.demand.software, inputs.demand.constants};
  demand.batch = plan.batch, demand.sequence_length = plan.sequence_length;
  demand.precision = plan.precision, demand.constraints = inputs.demand.constraints;
  return peak_memory_of(demand, ClusterView(double_cluster), plan).fits();
}

std::optional<PipelineTemplate> make_template(const TemplateInputs& inputs, BoundModel& bound_model,
                                              Candidate c) {
  const Demand& demand = inputs.demand;
  for (c.memory_margin = 8; c.memory_margin <= 20; c.memory_margin += 6) {
    const StageTable table = stage_table(demand, bound_model, c);
    const double microbatches = 2.0 * c.pp;
    const std::vector<int> split_layers =
        distribute_layers(table.seconds, static_cast<int>(demand.model.layers), microbatches);
    if (split_layers.empty()) return std::nullopt;
    PipelineTemplate pipeline_template;
    pipeline_template.candidate = c;
    for (std::size_t s = 0; s < split_layers.size(); ++s) {
      const double seconds = table.seconds[s][static_cast<std::size_t>(split_layers[s])];
      pipeline_template.layers.push_back(table.layer_mixes[s][static_cast<std::size_t>(split_layers[s])]);
      pipeline_template.first_seconds += seconds,
          pipeline_template.next_seconds = std::max(pipeline_template.next_seconds, seconds);
    }
    Plan plan = plan_of(demand, c, pipeline_template.layers);
    if (!fits_beside_another(inputs, plan)) continue;
    pipeline_template.pipeline = std::move(plan.pipelines.front());
    pipeline_template.pipeline.microbatches.clear();
    return pipeline_template;
  }
  return std::nullopt;
}

// Tensor-parallel sizes that divide the number of devices and leave at least one layer per stage. If any of
// them also divides the number of heads, only such sizes are returned.
std::vector<int> tensor_parallel_sizes(const Demand& demand, int num_devices, int devices_per_node) {
  std::vector<int> even, uneven;
  const auto max_parts = std::min<std::int64_t>(max_tensor_parts(demand.model), num_devices);
  for (int tp = 1; tp <= max_parts; ++tp) {
    if (num_devices % tp != 0 || num_devices / tp > demand.model.layers) continue;
    if (demand.constraints.tp && !demand.constraints.tp->contains(tp)) continue;
    (demand.model.heads % tp == 0 ? even : uneven).push_back(tp);
  }
  if (even.empty()) return uneven;
  // Tensor parallelism spans several nodes only if no smaller size is possible.
  std::vector<int> within_node;
  for (const int tp : even)
    if (tp <= devices_per_node) within_node.push_back(tp);
  return within_node.empty() ? std::vector<int>{even.front()} : within_node;
}

}  // namespace

std::optional<PipelineTemplate> best_pipeline_template(const Demand& demand, int nodes, int devices_per_node,
                                                       int microbatch) {
  const int num_devices = nodes * devices_per_node;
  std::optional<PipelineTemplate> best_template;
  for (const int tp : tensor_parallel_sizes(demand, num_devices, devices_per_node)) {
    Candidate c{.pp = num_devices / tp, .tp = tp, .microbatch = microbatch};
    c.is_fitted = demand.constraints.recompute.empty();
    if (!c.is_fitted) c.recompute = parse_recompute(demand.constraints.recompute, "recompute");
    const TemplateInputs template_inputs(demand, num_devices, microbatch, c.pp);
    BoundModel bound_model(template_inputs.demand, template_inputs.cluster_view);
    std::optional<PipelineTemplate> pipeline_template = make_template(template_inputs, bound_model, c);
    if (!pipeline_template) continue;
    pipeline_template->nodes = nodes;
    const auto seconds = [&](const PipelineTemplate& choice) {
      return choice.first_seconds + (2.0 * choice.candidate.pp - 1) * choice.next_seconds;
    };
    if (!best_template || seconds(*pipeline_template) / (2 * pipeline_template->candidate.pp) <
                              seconds(*best_template) / (2 * best_template->candidate.pp))
      best_template = std::move(pipeline_template);
  }
  return best_template;
}

}  // namespace optimus
