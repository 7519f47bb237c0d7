// See pipelines.h.
#include "search/pipelines.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "search/refine.h"

namespace optimus {
namespace {

std::vector<int> microbatches_of(std::int64_t sequences, int each) {
  std::vector<int> sizes(static_cast<std::size_t>(sequences / each), each);
  if (sequences % each != 0) sizes.push_back(static_cast<int>(sequences % each));
  return sizes;
}

// The grid's plan plus a pipeline with one replica and as many stages as the idle devices allow.
void add_idle(const Demand& demand, const Ground& ground, Bounder& bounder, const Candidate& c,
              std::vector<Plan>& plans) {
  const int used = c.num_devices(), unit = c.tp * c.cp;
  const int depth =
      static_cast<int>(std::min<std::int64_t>((ground.num_devices() - used) / unit, demand.model.layers));
  // Reductions across pipelines of different depth are simulated piece by piece, which is too slow for
  // thousands of devices and not worthwhile for a few idle ones.
  constexpr int kMostForPieces = 4096;
  const bool is_worth_it =
      used <= kMostForPieces && (ground.num_devices() - used) * 100 >= ground.num_devices();
  if (!is_worth_it || depth < 1 || c.schedule == Schedule::interleaved || demand.constraints.dp ||
      demand.constraints.pp)
    return;
  Candidate other = c;
  other.pp = depth, other.dp = 1, other.shard_group = 0;
  other.ep = std::gcd(c.ep, unit);
  other.is_fitted = demand.constraints.recompute.empty();
  if (other.is_fitted) other.recompute = RecomputeMode::none;
  if (!has_copies(demand, other)) other.zero = 0;
  const double share = static_cast<double>(depth) / (depth + c.dp * c.pp);
  const auto ideal =
      static_cast<std::int64_t>(std::llround(static_cast<double>(demand.batch) * share / c.microbatch));
  for (const std::int64_t number : {ideal - 1, ideal, ideal + 1}) {
    const std::int64_t own = number * c.microbatch;
    if (own < 1 || own >= demand.batch) continue;
    Plan plan = grid_plan(demand, bounder, c);
    plan.pipelines.front().microbatches = microbatches_of(demand.batch - own, c.microbatch * c.dp);
    Demand smaller = demand;
    smaller.batch = own;
    Pipeline second = grid_plan(smaller, bounder, other).pipelines.front();
    for (Stage& stage : second.stages)
      for (int& device : stage.devices) device += used;
    second.microbatches = microbatches_of(own, c.microbatch);
    plan.pipelines.push_back(std::move(second));
    plans.push_back(std::move(plan));
  }
}

// A subset of the cluster's present devices, as a cluster of its own.
struct PartOfCluster {
  std::vector<int> devices;  // virtual devices, ascending
  double power = 0;
  std::optional<Cluster> cluster;
  std::optional<Ground> ground;
};

PartOfCluster part_of(const Ground& ground, std::vector<int> devices) {
  PartOfCluster part;
  HardwareProfile profile = ground.cluster().profile();
  std::vector<bool> is_kept(static_cast<std::size_t>(ground.cluster().num_devices()));
  for (const int device : devices)
    is_kept[static_cast<std::size_t>(ground.map()[VirtualDevice{device}].value)] = true;
  profile.missing_devices.clear();
  for (std::size_t i = 0; i < is_kept.size(); ++i)
    if (!is_kept[i]) profile.missing_devices.push_back(static_cast<int>(i));
  part.devices = std::move(devices);
  part.cluster.emplace(std::move(profile));
  return part;
}

// The parts of the cluster by group of nodes, in the cluster's order.
std::vector<PartOfCluster> parts_of(const Ground& ground) {
  std::map<int, std::vector<int>> by_group;
  std::map<int, double> power;
  for (const Section& section : ground.sections()) {
    const DeviceKind& kind = ground.kinds()[static_cast<std::size_t>(section.kind)];
    for (int i = section.begin; i < section.end; ++i) by_group[kind.group].push_back(i);
    power[kind.group] += kind.power * (section.end - section.begin);
  }
  std::vector<PartOfCluster> parts;
  for (auto& [group, devices] : by_group) {
    parts.push_back(part_of(ground, std::move(devices)));
    parts.back().power = power[group];
  }
  for (PartOfCluster& part : parts) part.ground.emplace(*part.cluster);
  return parts;
}

Pipeline placed(Pipeline pipeline, const std::vector<int>& devices) {
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
  Demand own{demand.model, *part.cluster, demand.software, demand.constants};
  own.batch = batch, own.sequence_length = demand.sequence_length, own.precision = demand.precision;
  own.constraints = demand.constraints;
  own.constraints.schedule = schedule;
  Bounder bounder(own, *part.ground);
  const GridResult grid = search_grid(own, *part.ground, bounder, {.most_simulations = 40});
  if (grid.judged.empty()) return std::nullopt;
  const Judged& best = grid.judged.front();
  Plan plan = grid_plan(own, bounder, best.candidate);
  return PartPlan{placed(std::move(plan.pipelines.front()), part.devices),
                  static_cast<double>(batch) / best.seconds};
}

// One pipeline for each part. Shares of the batch are proportional to peak performance first, then to the
// speeds of the parts' plans.
void add_parts(const Demand& demand, const std::vector<PartOfCluster>& parts, const std::string& schedule,
               std::vector<Plan>& plans) {
  std::vector<double> speeds;
  for (const PartOfCluster& part : parts) speeds.push_back(part.power);
  for (int round = 0; round < 2; ++round) {
    double all = 0;
    for (const double speed : speeds) all += speed;
    Plan plan;
    plan.model = demand.model.name, plan.num_blocks = num_blocks(demand.model);
    plan.batch = demand.batch, plan.sequence_length = demand.sequence_length;
    plan.schedule = parse_schedule(schedule, "schedule"), plan.precision = demand.precision;
    plan.accumulators = demand.precision == Precision::fp64 ? Precision::fp64 : Precision::fp32;
    std::int64_t left = demand.batch;
    double left_speed = all;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto share =
          static_cast<std::int64_t>(std::llround(static_cast<double>(left) * speeds[i] / left_speed));
      left -= share, left_speed -= speeds[i];
      if (share < 1) continue;  // too slow to contribute
      const auto own = plan_part(demand, parts[i], share, schedule);
      if (!own) return;
      speeds[i] = own->sequences_per_second;
      plan.pipelines.push_back(own->pipeline);
    }
    if (left == 0 && plan.pipelines.size() > 1) plans.push_back(std::move(plan));
  }
}

// Excludes the slowest kind of device.
void add_without_slow(const Demand& demand, const Ground& ground, std::vector<Plan>& plans) {
  int slowest = 0;
  const std::vector<DeviceKind>& kinds = ground.kinds();
  for (int k = 0; k < std::ssize(kinds); ++k)
    if (kinds[static_cast<std::size_t>(k)].power < kinds[static_cast<std::size_t>(slowest)].power)
      slowest = k;
  std::vector<int> kept;
  for (const Section& section : ground.sections())
    for (int i = section.begin; i < section.end && section.kind != slowest; ++i) kept.push_back(i);
  if (kept.empty()) return;
  PartOfCluster part = part_of(ground, std::move(kept));
  part.ground.emplace(*part.cluster);
  Demand own{demand.model, *part.cluster, demand.software, demand.constants};
  own.batch = demand.batch, own.sequence_length = demand.sequence_length, own.precision = demand.precision;
  own.constraints = demand.constraints;
  Bounder bounder(own, *part.ground);
  const GridResult grid = search_grid(own, *part.ground, bounder, {.most_simulations = 40});
  if (grid.judged.empty()) return;
  Plan plan = grid_plan(own, bounder, grid.judged.front().candidate);
  plan.pipelines.front() = placed(std::move(plan.pipelines.front()), part.devices);
  plans.push_back(std::move(plan));
}

}  // namespace

std::vector<Plan> pipelines_of_parts(const Demand& demand, const Ground& ground, Bounder& bounder,
                                     const GridResult& grid) {
  std::vector<Plan> plans;
  constexpr std::size_t kMostStarts = 3;
  for (std::size_t i = 0; i < std::min(kMostStarts, grid.judged.size()); ++i)
    add_idle(demand, ground, bounder, grid.judged[i].candidate, plans);
  if (ground.is_uniform()) return plans;
  constexpr std::size_t kMostParts = 8;
  const std::vector<PartOfCluster> parts = parts_of(ground);
  if (parts.size() > 1 && parts.size() <= kMostParts && !demand.constraints.dp) {
    const std::string wanted = demand.constraints.schedule;
    for (const char* schedule : {"1f1b", "zero-bubble"})
      if (wanted.empty() || wanted == schedule) add_parts(demand, parts, schedule, plans);
  }
  add_without_slow(demand, ground, plans);
  return plans;
}

}  // namespace optimus
