// See templates.h.
#include "recovery/templates.h"

#include <algorithm>

#include "base/error.h"
#include "plan/validate.h"
#include "search/evaluate.h"
#include "search/sizing.h"

namespace optimus {
namespace {

// Larger pipelines only add bubbles. They are needed only if the batch has too few sequences for more
// pipelines.
constexpr int kUsualMaxNodes = 16;

int largest_template(const TemplateOptions& options, int smallest, std::int64_t batch) {
  // Every pipeline needs at least one sequence.
  const auto for_batch = static_cast<int>((options.max_nodes + batch - 1) / batch) + 1;
  return std::min(options.max_nodes, std::max({2 * smallest - 1, kUsualMaxNodes, for_batch}));
}

}  // namespace

Feasible<PipelineTemplates> PipelineTemplates::build(const Demand& demand, const TemplateOptions& options) {
  ensure(options.max_nodes >= 1 && options.devices_per_node >= 1 && options.failures >= 0,
         "invalid template options: {} nodes of {} devices, {} failures", options.max_nodes,
         options.devices_per_node, options.failures);
  if (demand.model.is_custom())
    return infeasible("{} is a custom model; pipeline templates support only transformers",
                      demand.model.name);
  if (demand.sequence_length > demand.model.max_positions)
    return infeasible("--seq {} is longer than the {} positions of {}; use at most that many",
                      demand.sequence_length, demand.model.max_positions, demand.model.name);
  PipelineTemplates templates;
  templates.devices_per_node_ = options.devices_per_node;
  Plan& base_plan = templates.base_plan_;
  base_plan.model = demand.model.name, base_plan.num_blocks = num_blocks(demand.model);
  base_plan.batch = demand.batch, base_plan.sequence_length = demand.sequence_length;
  base_plan.precision = demand.precision;
  base_plan.accumulators = demand.precision == Precision::fp64 ? Precision::fp64 : Precision::fp32;
  if (!templates.make_templates(demand, options))
    return infeasible(
        "{} does not fit on {} nodes of {} devices; use more nodes, or devices with more memory",
        demand.model.name, options.max_nodes, options.devices_per_node);
  templates.choices_.resize(static_cast<std::size_t>(options.max_nodes) + 1);
  for (int nodes = 1; nodes <= options.max_nodes; ++nodes) templates.choose_for(nodes, demand, options);
  return templates;
}

bool PipelineTemplates::make_templates(const Demand& demand, const TemplateOptions& options) {
  for (const int microbatch : microbatch_choices(demand, 1)) {
    std::map<int, PipelineTemplate> templates;
    for (int nodes = 1; nodes <= options.max_nodes; ++nodes) {
      if (!templates.empty() && nodes > largest_template(options, templates.begin()->first, demand.batch))
        break;
      if (auto pipeline_template =
              best_pipeline_template(demand, nodes, options.devices_per_node, microbatch))
        templates.emplace(nodes, std::move(*pipeline_template));
    }
    if (templates.empty()) continue;
    const int fewest = templates.begin()->first;
    min_nodes_ = min_nodes_ == 0 ? fewest : std::min(min_nodes_, fewest);
    templates_by_size_.emplace(microbatch, std::move(templates));
  }
  return min_nodes_ > 0;
}

const PipelineTemplate* PipelineTemplates::find(int microbatch, int nodes) const {
  const auto templates = templates_by_size_.find(microbatch);
  if (templates == templates_by_size_.end()) return nullptr;
  const auto it = templates->second.find(nodes);
  return it == templates->second.end() ? nullptr : &it->second;
}

namespace {

// The number of micro-batches per replica if `replicas` equal pipelines process these sequences in
// micro-batches of the maximum size.
std::int64_t num_rounds(std::int64_t sequences, int replicas, int microbatch) {
  const std::int64_t sequences_per_round = static_cast<std::int64_t>(replicas) * microbatch;
  return (sequences + sequences_per_round - 1) / sequences_per_round;
}

// The step time of `replicas` equal pipelines for these sequences, split into micro-batches of equal size.
double seconds_for(const PipelineTemplate& pipeline_template, int replicas, std::int64_t sequences) {
  const std::int64_t rounds = num_rounds(sequences, replicas, pipeline_template.candidate.microbatch);
  const std::int64_t largest = (sequences + rounds * replicas - 1) / (rounds * replicas);
  const double fraction = static_cast<double>(largest) / pipeline_template.candidate.microbatch;
  return fraction *
         (pipeline_template.first_seconds + static_cast<double>(rounds - 1) * pipeline_template.next_seconds);
}

// The largest number of sequences that `replicas` equal pipelines can process in `seconds`, but at least one
// per pipeline.
std::int64_t sequences_in(const PipelineTemplate& pipeline_template, int replicas, std::int64_t max_sequences,
                          double seconds) {
  std::int64_t low = replicas, high = max_sequences + 1;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (seconds_for(pipeline_template, replicas, middle) <= seconds ? low : high) = middle;
  }
  return low;
}

}  // namespace

// The templates of the pipelines, each with a number of sequences, chosen so that all pipelines finish at
// about the same time. Returns an empty vector if a template is missing or there are fewer sequences than
// pipelines.
std::vector<PipelineTemplates::Share> PipelineTemplates::shares(const Choice& choice) const {
  const int small_size = choice.nodes / choice.pipelines, num_large = choice.nodes % choice.pipelines;
  std::vector<Share> result;
  for (const auto& [size, count] :
       {std::pair{small_size + 1, num_large}, std::pair{small_size, choice.pipelines - num_large}}) {
    if (count == 0) continue;
    const PipelineTemplate* pipeline_template = find(choice.microbatch, size);
    if (pipeline_template == nullptr) return {};
    result.push_back({pipeline_template, count, 0});
  }
  if (base_plan_.batch < choice.pipelines) return {};
  distribute_batch(result);
  return result;
}

void PipelineTemplates::distribute_batch(std::vector<Share>& shares) const {
  double low = 0, high = 0;
  std::int64_t reserved = 0;
  for (const Share& share : shares) {
    high = std::max(high, seconds_for(*share.pipeline_template, share.replicas, base_plan_.batch));
    reserved += share.replicas;
  }
  constexpr int kHalvings = 30;
  for (int i = 0; i < kHalvings && shares.size() > 1; ++i) {
    const double middle = (low + high) / 2;
    std::int64_t sum = 0;
    for (const Share& share : shares)
      sum += sequences_in(*share.pipeline_template, share.replicas, base_plan_.batch, middle);
    (sum >= base_plan_.batch ? high : low) = middle;
  }
  std::int64_t remaining = base_plan_.batch;
  for (Share& share : shares) {
    reserved -= share.replicas;  // reserves one sequence for each of the following pipelines
    share.sequences = std::min(sequences_in(*share.pipeline_template, share.replicas, base_plan_.batch, high),
                               remaining - reserved);
    remaining -= share.sequences;
  }
  shares.front().sequences += remaining;
}

double PipelineTemplates::estimate(const std::vector<Share>& shares) const {
  double max_seconds = 0;
  for (const Share& share : shares)
    max_seconds =
        std::max(max_seconds, seconds_for(*share.pipeline_template, share.replicas, share.sequences));
  return max_seconds;
}

// All feasible choices with at least `min_pipelines` pipelines for this number of nodes, sorted by estimated
// step time.
std::vector<PipelineTemplates::Choice> PipelineTemplates::feasible_choices(int nodes,
                                                                           int min_pipelines) const {
  std::vector<Choice> result;
  for (const auto& [microbatch, templates] : templates_by_size_) {
    const int max_pipelines = nodes / templates.begin()->first;
    for (int pipelines = std::max(1, std::min(min_pipelines, max_pipelines)); pipelines <= max_pipelines;
         ++pipelines) {
      Choice choice{nodes, pipelines, microbatch, 0};
      const std::vector<Share> candidate_shares = shares(choice);
      if (candidate_shares.empty()) continue;
      choice.seconds = estimate(candidate_shares);
      result.push_back(choice);
    }
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const Choice& a, const Choice& b) { return a.seconds < b.seconds; });
  return result;
}

// Chooses the number of pipelines and the micro-batch size. The required number of pipelines takes priority
// over speed. The few choices with the best estimates are simulated, and the fastest one is used.
void PipelineTemplates::choose_for(int nodes, const Demand& demand, const TemplateOptions& options) {
  Choice& best_choice = choices_[static_cast<std::size_t>(nodes)];
  std::vector<Choice> candidates = feasible_choices(nodes, options.failures + 1);
  // The batch has too few sequences for that many pipelines.
  if (candidates.empty()) candidates = feasible_choices(nodes, 1);
  if (candidates.empty()) {  // too many nodes for the batch, or a template is missing: leaves one node idle
    if (nodes > 1) best_choice = choices_[static_cast<std::size_t>(nodes) - 1];
    return;
  }
  constexpr std::size_t kMaxSimulated = 4;
  candidates.resize(std::min(candidates.size(), kMaxSimulated));
  const Cluster cluster = with_devices(demand.cluster, nodes * devices_per_node_);
  const ClusterView cluster_view(cluster);
  Demand cluster_demand{demand.model, cluster, demand.software, demand.constants};
  cluster_demand.batch = demand.batch, cluster_demand.sequence_length = demand.sequence_length,
  cluster_demand.precision = demand.precision;
  cluster_demand.constraints = demand.constraints;
  for (Choice choice : candidates) {
    const Plan plan = assemble(choice);
    const auto problem = find_problem(plan, demand.model);
    ensure(!problem, "template plan for {} nodes is invalid: {}", nodes, problem.value_or(""));
    if (!peak_memory_of(cluster_demand, cluster_view, plan).fits()) continue;
    choice.seconds = seconds_of(cluster_demand, cluster_view, plan);
    if (best_choice.nodes == 0 || choice.seconds < best_choice.seconds) best_choice = choice;
  }
  if (best_choice.nodes == 0 && nodes > 1) best_choice = choices_[static_cast<std::size_t>(nodes) - 1];
}

Plan PipelineTemplates::assemble(const Choice& choice) const {
  Plan plan = base_plan_;
  int next_device = 0;  // index of the next free device
  for (const Share& share : shares(choice)) {
    Pipeline pipeline = share.pipeline_template->pipeline;
    const int size = share.pipeline_template->nodes * devices_per_node_;
    for (Stage& stage : pipeline.stages) {
      const std::vector<int> replica_devices = stage.devices;
      stage.devices.clear();
      for (int replica = 0; replica < share.replicas; ++replica)
        for (const int device : replica_devices)
          stage.devices.push_back(next_device + replica * size + device);
    }
    next_device += share.replicas * size;
    const std::int64_t rounds = num_rounds(share.sequences, share.replicas, choice.microbatch);
    for (std::int64_t i = 0; i < rounds; ++i)
      pipeline.microbatches.push_back(
          static_cast<int>(share.sequences / rounds + (i < share.sequences % rounds)));
    plan.pipelines.push_back(std::move(pipeline));
  }
  return plan;
}

const PipelineTemplates::Choice& PipelineTemplates::choice_of(int nodes) const {
  const int index = std::min(nodes, max_nodes());
  if (index < 1 || choices_[static_cast<std::size_t>(index)].nodes == 0)
    throw UserError("{} needs at least {} nodes, but only {} are left", base_plan_.model, min_nodes_,
                    std::max(0, nodes));
  return choices_[static_cast<std::size_t>(index)];
}

Plan PipelineTemplates::plan_for(int nodes) const { return assemble(choice_of(nodes)); }

}  // namespace optimus
