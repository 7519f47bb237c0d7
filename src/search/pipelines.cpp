// See pipelines.h.
#include "search/pipelines.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "search/fitted_plan.h"

namespace optimus {
namespace {

std::vector<int> microbatches_of(std::int64_t sequences, int size) {
  std::vector<int> sizes(static_cast<std::size_t>(sequences / size), size);
  if (sequences % size != 0) sizes.push_back(static_cast<int>(sequences % size));
  return sizes;
}

// Adds plans that consist of the grid's plan and a second pipeline with one replica and as many stages as
// the idle devices allow.
void add_idle_pipelines(const Demand& demand, const ClusterView& cluster_view, BoundModel& bound_model,
                        const Candidate& c, std::vector<Plan>& plans) {
  const int num_used = c.num_devices(), unit = c.tp * c.cp;
  const int depth = static_cast<int>(
      std::min<std::int64_t>((cluster_view.num_devices() - num_used) / unit, demand.model.layers));
  // Reductions across pipelines of different depth are simulated box by box, which is too slow for
  // thousands of devices and not worthwhile for a few idle ones.
  constexpr int kMaxDevicesForPieces = 4096;
  const bool is_worthwhile = num_used <= kMaxDevicesForPieces &&
                             (cluster_view.num_devices() - num_used) * 100 >= cluster_view.num_devices();
  if (!is_worthwhile || depth < 1 || c.schedule == Schedule::interleaved || demand.constraints.dp ||
      demand.constraints.pp)
    return;
  Candidate idle_candidate = c;
  idle_candidate.pp = depth, idle_candidate.dp = 1, idle_candidate.shard_group = 0;
  idle_candidate.ep = std::gcd(c.ep, unit);
  idle_candidate.is_fitted = demand.constraints.recompute.empty();
  if (idle_candidate.is_fitted) idle_candidate.recompute = RecomputeMode::none;
  if (!has_copies(demand, idle_candidate)) idle_candidate.zero = 0;
  const double share = static_cast<double>(depth) / (depth + c.dp * c.pp);
  const auto ideal =
      static_cast<std::int64_t>(std::llround(static_cast<double>(demand.batch) * share / c.microbatch));
  for (const std::int64_t number : {ideal - 1, ideal, ideal + 1}) {
    const std::int64_t num_sequences = number * c.microbatch;
    if (num_sequences < 1 || num_sequences >= demand.batch) continue;
    Plan plan = grid_plan(demand, bound_model, c);
    plan.pipelines.front().microbatches = microbatches_of(demand.batch - num_sequences, c.microbatch * c.dp);
    Demand second_demand = demand;
    second_demand.batch = num_sequences;
    Pipeline second_pipeline = grid_plan(second_demand, bound_model, idle_candidate).pipelines.front();
    for (Stage& stage : second_pipeline.stages)
      for (int& device : stage.devices) device += num_used;
    second_pipeline.microbatches = microbatches_of(num_sequences, c.microbatch);
    plan.pipelines.push_back(std::move(second_pipeline));
    plans.push_back(std::move(plan));
  }
}

// A subset of the cluster's present devices, as a separate cluster.
struct PartOfCluster {
  std::vector<int> devices;  // virtual devices, ascending
  double effective_peak = 0;
  std::optional<Cluster> cluster;
  std::optional<ClusterView> cluster_view;
};

PartOfCluster part_of(const ClusterView& cluster_view, std::vector<int> devices) {
  PartOfCluster part;
  HardwareProfile profile = cluster_view.cluster().profile();
  std::vector<bool> is_included(static_cast<std::size_t>(cluster_view.cluster().num_devices()));
  for (const int device : devices)
    is_included[static_cast<std::size_t>(cluster_view.map()[VirtualDevice{device}].value)] = true;
  profile.missing_devices.clear();
  for (std::size_t i = 0; i < is_included.size(); ++i)
    if (!is_included[i]) profile.missing_devices.push_back(static_cast<int>(i));
  part.devices = std::move(devices);
  part.cluster.emplace(std::move(profile));
  return part;
}

// The parts of the cluster: one per node group, in the cluster's order.
std::vector<PartOfCluster> parts_of(const ClusterView& cluster_view) {
  std::map<int, std::vector<int>> by_group;
  std::map<int, double> effective_peak;
  for (const Section& section : cluster_view.sections()) {
    const DeviceKind& kind = cluster_view.kinds()[static_cast<std::size_t>(section.kind)];
    for (int i = section.begin; i < section.end; ++i) by_group[kind.group].push_back(i);
    effective_peak[kind.group] += kind.effective_peak * (section.end - section.begin);
  }
  std::vector<PartOfCluster> parts;
  for (auto& [group, devices] : by_group) {
    parts.push_back(part_of(cluster_view, std::move(devices)));
    parts.back().effective_peak = effective_peak[group];
  }
  for (PartOfCluster& part : parts) part.cluster_view.emplace(*part.cluster);
  return parts;
}

Pipeline with_devices_of(Pipeline pipeline, const std::vector<int>& devices) {
  for (Stage& stage : pipeline.stages)
    for (int& device : stage.devices) device = devices[static_cast<std::size_t>(device)];
  return pipeline;
}

struct PartPlan {
  Pipeline pipeline;
  double sequences_per_second = 0;
};

std::optional<PartPlan> plan_part(const Demand& demand, const PartOfCluster& part, std::int64_t batch,
                                  const std::string& schedule) {
  Demand part_demand{demand.model, *part.cluster, demand.software, demand.constants};
  part_demand.batch = batch, part_demand.sequence_length = demand.sequence_length,
  part_demand.precision = demand.precision;
  part_demand.constraints = demand.constraints;
  part_demand.constraints.schedule = schedule;
  BoundModel bound_model(part_demand, *part.cluster_view);
  const GridResult grid = search_grid(part_demand, *part.cluster_view, bound_model, {.max_simulations = 40});
  if (grid.evaluated.empty()) return std::nullopt;
  const EvaluatedCandidate& best = grid.evaluated.front();
  Plan plan = grid_plan(part_demand, bound_model, best.candidate);
  return PartPlan{with_devices_of(std::move(plan.pipelines.front()), part.devices),
                  static_cast<double>(batch) / best.seconds};
}

// Adds plans with one pipeline for each part. In the first round, the shares of the batch are proportional to
// peak performance. In the second round, they are proportional to the simulated speeds of the plans for each
// part.
void add_part_pipelines(const Demand& demand, const std::vector<PartOfCluster>& parts,
                        const std::string& schedule, std::vector<Plan>& plans) {
  std::vector<double> speeds;
  for (const PartOfCluster& part : parts) speeds.push_back(part.effective_peak);
  for (int round = 0; round < 2; ++round) {
    double total_speed = 0;
    for (const double speed : speeds) total_speed += speed;
    Plan plan;
    plan.model = demand.model.name, plan.num_blocks = num_blocks(demand.model);
    plan.batch = demand.batch, plan.sequence_length = demand.sequence_length;
    plan.schedule = parse_schedule(schedule, "schedule"), plan.precision = demand.precision;
    plan.accumulators = demand.precision == Precision::fp64 ? Precision::fp64 : Precision::fp32;
    std::int64_t remaining = demand.batch;
    double remaining_speed = total_speed;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto share = static_cast<std::int64_t>(
          std::llround(static_cast<double>(remaining) * speeds[i] / remaining_speed));
      remaining -= share, remaining_speed -= speeds[i];
      if (share < 1) continue;  // too slow to contribute
      const auto part_plan = plan_part(demand, parts[i], share, schedule);
      if (!part_plan) return;
      speeds[i] = part_plan->sequences_per_second;
      plan.pipelines.push_back(part_plan->pipeline);
    }
    if (remaining == 0 && plan.pipelines.size() > 1) plans.push_back(std::move(plan));
  }
}

// Adds a plan that excludes the slowest kind of device.
void add_plan_without_slow_devices(const Demand& demand, const ClusterView& cluster_view,
                                   std::vector<Plan>& plans) {
  int slowest = 0;
  const std::vector<DeviceKind>& kinds = cluster_view.kinds();
  for (int k = 0; k < std::ssize(kinds); ++k)
    if (kinds[static_cast<std::size_t>(k)].effective_peak <
        kinds[static_cast<std::size_t>(slowest)].effective_peak)
      slowest = k;
  std::vector<int> included_devices;
  for (const Section& section : cluster_view.sections())
    for (int i = section.begin; i < section.end && section.kind != slowest; ++i)
      included_devices.push_back(i);
  if (included_devices.empty()) return;
  PartOfCluster part = part_of(cluster_view, std::move(included_devices));
  part.cluster_view.emplace(*part.cluster);
  Demand own_demand{demand.model, *part.cluster, demand.software, demand.constants};
  own_demand.batch = demand.batch, own_demand.sequence_length = demand.sequence_length,
  own_demand.precision = demand.precision;
  own_demand.constraints = demand.constraints;
  BoundModel bound_model(own_demand, *part.cluster_view);
  const GridResult grid = search_grid(own_demand, *part.cluster_view, bound_model, {.max_simulations = 40});
  if (grid.evaluated.empty()) return;
  Plan plan = grid_plan(own_demand, bound_model, grid.evaluated.front().candidate);
  plan.pipelines.front() = with_devices_of(std::move(plan.pipelines.front()), part.devices);
  plans.push_back(std::move(plan));
}

}  // namespace

std::vector<Plan> multi_pipeline_plans(const Demand& demand, const ClusterView& cluster_view,
                                       BoundModel& bound_model, const GridResult& grid) {
  std::vector<Plan> plans;
  constexpr std::size_t kMaxStarts = 3;
  for (std::size_t i = 0; i < std::min(kMaxStarts, grid.evaluated.size()); ++i)
    add_idle_pipelines(demand, cluster_view, bound_model, grid.evaluated[i].candidate, plans);
  if (cluster_view.is_uniform()) return plans;
  constexpr std::size_t kMaxParts = 8;
  const std::vector<PartOfCluster> parts = parts_of(cluster_view);
  if (parts.size() > 1 && parts.size() <= kMaxParts && !demand.constraints.dp) {
    const std::string requested_schedule = demand.constraints.schedule;
    for (const char* schedule : {"1f1b", "zero-bubble"})
      if (requested_schedule.empty() || requested_schedule == schedule)
        add_part_pipelines(demand, parts, schedule, plans);
  }
  add_plan_without_slow_devices(demand, cluster_view, plans);
  return plans;
}

}  // namespace optimus
