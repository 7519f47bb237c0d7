// Implements calibration.h.
#include "adapt/calibration.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "adapt/step_meter.h"
#include "cost/instruction_cost.h"
#include "cost/link_cost.h"

namespace optimus {
namespace {

bool is_between_nodes(const Topology& topology, int group, Channel channel) {
  const std::vector<int>& ranks = topology.ranks_of_group(group);
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](int rank) { return topology.nodes_of(rank, channel).size() > 1; });
}

// Message sizes in bytes at which measured ratios are converted to bandwidths.
constexpr double kMessageBytes = 1 << 19, kRingBytes = 1 << 20;

// Predicted seconds for a message to another node. `is_alone` means that the other devices of the node are
// not sending at the same time.
double message_seconds(const Cluster& cluster, double bytes, bool is_alone = false) {
  int remote = 0;
  while (cluster.node_of(Device{remote}) == cluster.node_of(Device{0})) ++remote;
  Link link = cluster.link(Device{0}, Device{remote});
  if (is_alone) link.shared_bytes_per_second = link.bytes_per_second;
  return LinkCost(fitted_constants()).message_seconds(link, bytes);
}

// Predicted seconds for an all-reduce over all devices.
double ring_seconds(const Cluster& cluster, double bytes) {
  std::vector<int> devices(static_cast<std::size_t>(cluster.num_devices()));
  std::iota(devices.begin(), devices.end(), 0);
  const GroupShape shape = shape_of(devices, cluster, DeviceMap::identity(cluster.num_devices()));
  return LinkCost(fitted_constants()).collective_seconds(Collective::all_reduce, shape, bytes);
}

// Scales network bandwidths so that messages take `slowdown` times as long. Uses bisection because latencies
// are not scaled and the effective bandwidth depends on the message size.
HardwareProfile with_messages(const HardwareProfile& profile, double slowdown) {
  const auto with_speed = [&](double factor) {
    HardwareProfile scaled = profile;
    for (NodeGroup& group : scaled.groups) group.network.nic.bytes_per_second *= factor;
    return scaled;
  };
  const Cluster baseline_cluster(profile);
  if (slowdown == 1 || baseline_cluster.num_nodes() < 2) return profile;
  const double target_seconds = slowdown * message_seconds(baseline_cluster, kMessageBytes);
  double low = 1e-6, high = 1e3;
  for (int i = 0; i < 50; ++i) {
    const double middle = std::sqrt(low * high);
    (message_seconds(Cluster(with_speed(middle)), kMessageBytes) > target_seconds ? low : high) = middle;
  }
  return with_speed(std::sqrt(low * high));
}

// Sets the predicted seconds per byte of each channel, based on its largest message.
void set_links(const Setup& setup, const StepMeter& meter, const PricedProgram& priced,
               const std::vector<double>& seconds, StageWork& stage_work) {
  const LinkCost cost(fitted_constants());
  const Program& program = priced.program();
  std::array<double, kChannels> largest{};
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const auto [channel, bytes] = meter.message(i);
    const auto c = static_cast<std::size_t>(channel);
    if (bytes <= largest[c]) continue;
    const Instruction& instruction = program.instructions[i];
    const double duration =
        instruction.peer < 0
            ? seconds[i]
            : cost.message_seconds(setup.cluster.link(setup.map[VirtualDevice{program.device}],
                                                      setup.map[VirtualDevice{instruction.peer}]),
                                   bytes);
    largest[c] = bytes, stage_work.links[c] = duration / bytes;
  }
}

}  // namespace

std::vector<StageWork> stage_work(const Plan& plan, const ModelSpec& model, const Cluster& cluster) {
  if (model.is_custom()) return {};
  const DeviceMap map = DeviceMap::identity(num_device_numbers(plan));
  const Setup setup{plan, model, cluster, map, optimus_software(), format_of(plan.precision)};
  const ModelWork model_work = work_of(model, plan.sequence_length);
  std::vector<StageWork> result;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      const int device = stage.devices.front();
      const PricedProgram priced(setup, model_work, compile_without_buffers(plan, model, device),
                                 Device{device});
      const std::vector<double> seconds = priced.price(fitted_constants());
      StageWork& work = result.emplace_back();
      for (std::size_t i = 0; i < seconds.size(); ++i)
        if (const Instruction& instruction = priced.program().instructions[i];
            is_computing(instruction.op) && instruction.block >= 0)
          work.compute[static_cast<std::size_t>(role_of(model, instruction.block))] += seconds[i];
      set_links(setup, StepMeter(priced.program(), plan, model, seconds), priced, seconds, work);
    }
  return result;
}

Constants with_rates(Constants constants, const BlockTimeRatios& rates) {
  constants.embedding_residual *= rates[static_cast<std::size_t>(BlockRole::embedding)];
  constants.head_residual *= rates[static_cast<std::size_t>(BlockRole::head)];
  return constants;
}

// A slow moving average, because gradual changes over hours are not conditions.
void Calibration::Mean::add(double value) {
  constexpr int kMaxWeight = 256;
  count = std::min(count + 1, kMaxWeight);
  const double log_value = std::log(value), previous_log = log;
  log += (log_value - log) / count;
  square += ((log_value - previous_log) * (log_value - log) - square) / count;
}

double Calibration::Mean::value() const { return std::exp(log); }

void Calibration::learn(const Observation& undisturbed, const std::vector<StageWork>& stage_work,
                        const Topology& topology) {
  ++num_learned_;
  for (std::size_t role = 0; role < kBlockRoles; ++role)
    if (const BlockTime& rate = undisturbed.rates[role]; rate.seconds > 0 && rate.predicted > 0)
      rates_[role].add(rate.seconds / rate.predicted);
  for (const auto& [group, group_step] : undisturbed.groups)
    for (std::size_t c = 0; c < kChannels && group < std::ssize(stage_work); ++c) {
      const auto channel = static_cast<Channel>(c);
      const double predicted = stage_work[static_cast<std::size_t>(group)].links[c];
      const Spread& spread = group_step.of(measure_of(channel));
      if (spread.count > 0 && spread.median() > 0 && predicted > 0)
        links_[c][is_between_nodes(topology, group, channel) ? 1 : 0].add(spread.median() / predicted);
    }
}

std::optional<double> Calibration::rate(BlockRole role) const {
  const Mean& mean = rates_[static_cast<std::size_t>(role)];
  return mean.count > 0 ? std::optional(mean.value()) : std::nullopt;
}

double Calibration::uncertainty(BlockRole role) const {
  return std::sqrt(rates_[static_cast<std::size_t>(role)].square);
}

std::map<std::pair<int, Measure>, double> Calibration::baselines(const std::vector<StageWork>& stage_work,
                                                                 const Topology& topology) const {
  std::map<std::pair<int, Measure>, double> result;
  if (!is_known()) return result;
  for (int group = 0; group < std::min<int>(topology.num_groups(), static_cast<int>(stage_work.size()));
       ++group) {
    double compute = 0;
    for (std::size_t role = 0; role < kBlockRoles; ++role) {
      const double predicted = stage_work[static_cast<std::size_t>(group)].compute[role];
      // If no rank has computed this kind of block, the rate of the layers is used.
      const auto ratio = rate(static_cast<BlockRole>(role)), layer_ratio = rate(BlockRole::layer);
      if (predicted > 0) compute += predicted * ratio.value_or(layer_ratio.value_or(0));
    }
    if (compute > 0) result[{group, Measure::compute}] = compute;
    for (std::size_t c = 0; c < kChannels; ++c) {
      const auto channel = static_cast<Channel>(c);
      const Mean& mean = links_[c][is_between_nodes(topology, group, channel) ? 1 : 0];
      const double predicted = stage_work[static_cast<std::size_t>(group)].links[c];
      if (mean.count > 0 && predicted > 0) result[{group, measure_of(channel)}] = mean.value() * predicted;
    }
  }
  return result;
}

HardwareProfile Calibration::refreshed(HardwareProfile profile) const {
  if (!is_known()) return profile;
  if (const auto layers = rate(BlockRole::layer))
    for (DeviceType& type : profile.types) {
      for (double* peak : {&type.peak.fp64, &type.peak.fp32, &type.peak.tf32, &type.peak.bf16,
                           &type.peak.fp16, &type.peak.fp8, &type.peak.fp4, &type.memory_bytes_per_second})
        *peak /= *layers;
      for (KernelTimes& times : type.kernels)
        for (auto& [name, table] : times.tables)
          for (double& rate : table.rates) rate /= *layers;
    }
  // The fastest channel indicates the speed of the link. The times of other channels include waiting for
  // other ranks.
  double fastest_in_node = 0;
  for (const auto& channel : links_)
    if (channel[0].count > 0 && (fastest_in_node == 0 || channel[0].value() < fastest_in_node))
      fastest_in_node = channel[0].value();
  if (fastest_in_node > 0)
    for (NodeGroup& group : profile.groups)
      group.domain_link.bytes_per_second /= fastest_in_node,
          group.node_link.bytes_per_second /= fastest_in_node;
  return with_messages(profile, message_ratio().value_or(ring_ratio().value_or(1)));
}

double Calibration::ring_factor(const HardwareProfile& profile) const {
  const Cluster baseline_cluster(profile);
  if (!is_known() || !ring_ratio() || baseline_cluster.num_nodes() < 2) return 1;
  return *ring_ratio() * ring_seconds(baseline_cluster, kRingBytes) /
         ring_seconds(Cluster(refreshed(profile)), kRingBytes);
}

std::optional<double> Calibration::fastest_ratio(std::initializer_list<Channel> channels,
                                                 std::optional<double> probed) const {
  std::optional<double> result;
  for (const Channel channel : channels)
    if (const Mean& mean = links_[static_cast<std::size_t>(channel)][1];
        mean.count > 0 && (!result || mean.value() < *result))
      result = mean.value();
  return result ? result : probed;
}

void Calibration::learn(const ProbeResult& undisturbed, const Cluster& cluster) {
  if (cluster.num_nodes() < 2) return;
  if (undisturbed.ring_seconds > 0)
    probed_rings_ = undisturbed.ring_seconds / ring_seconds(cluster, undisturbed.ring_bytes);
  std::vector<double> ratios;
  for (std::size_t node = 0; node < undisturbed.network.size(); ++node)
    if (undisturbed.network[node] > 0)
      ratios.push_back(undisturbed.network[node] * undisturbed.bytes[node] /
                       message_seconds(cluster, undisturbed.bytes[node], /*is_alone=*/true));
  std::sort(ratios.begin(), ratios.end());
  if (!ratios.empty()) probed_messages_ = ratios[ratios.size() / 2];
}

}  // namespace optimus
