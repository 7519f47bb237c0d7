// Implements failure_speeds.h.
#include "cli/failure_speeds.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/open_model.h"
#include "cluster/open.h"
#include "model/tensors.h"
#include "recovery/templates.h"

namespace optimus {
namespace {

int max_nodes_of(const AvailabilityTrace& trace) {
  int maximum = 1;
  for (const NodeCount& count : node_counts(trace)) maximum = std::max(maximum, count.nodes);
  return maximum;
}

}  // namespace

std::optional<double> dollars_per_second(const FailureOptions& options, const Cluster& cluster) {
  if (options.price) return *options.price * cluster.num_present() / 3600;
  double sum = 0;
  for (const NodeGroup& group : cluster.profile().groups) {
    const DeviceType& type = cluster.profile().types[static_cast<std::size_t>(group.type)];
    if (!type.price_per_hour) return std::nullopt;
    sum += *type.price_per_hour * group.num_devices / 3600;
  }
  return sum;
}

ReconfigurationCosts reconfiguration_costs_for(const ReplaySpeeds& speeds, System system) {
  if (speeds.tables)
    return system == System::ours ? ReconfigurationCosts{}
                                  : speeds.tables->of(system, speeds.model).reconfiguration;
  ReconfigurationCosts reconfiguration = reconfiguration_costs_of(system, speeds.parameters);
  reconfiguration.min_nodes = speeds.min_nodes;
  if (system == System::bamboo)  // redundant computation needs a neighbor
    reconfiguration.stages = std::max(2, speeds.min_nodes),
    reconfiguration.min_nodes = reconfiguration.stages;
  return reconfiguration;
}

ReplaySpeeds speeds_from_table(const FailureOptions& options, const std::string& model) {
  if (options.reconfiguration.empty() || model.empty())
    throw UsageError("--throughput CSV requires --halts CSV and --model NAME with a model in that table");
  ReplaySpeeds speeds;
  speeds.tables = PublishedTables::parse(read_input_file(options.throughput, kMaxTraceBytes),
                                         read_input_file(options.reconfiguration, kMaxTraceBytes),
                                         options.throughput.string(), options.reconfiguration.string());
  const PublishedSystem& templates = speeds.tables->of(System::oobleck, model);
  speeds.throughput = templates.throughput, speeds.batch = templates.batch;
  speeds.min_nodes = templates.reconfiguration.min_nodes;
  speeds.parameters = published_parameters(model), speeds.model = model;
  speeds.ready_seconds = options.node_start.value_or(Seconds(45)).value;
  if (options.sequence_length) speeds.tokens = static_cast<double>(*options.sequence_length);
  speeds.description = fmt::format("oobleck's measurements of {} in {}, used for all systems", model,
                                   options.throughput.string());
  return speeds;
}

RecoveryCosts recovery_costs(const FailureOptions& options, std::optional<double> link_bytes_per_second) {
  RecoveryCosts costs;
  if (link_bytes_per_second) costs.link_bytes_per_second = kLinkEfficiency * *link_bytes_per_second;
  if (options.recovery_costs.empty()) return costs;
  return parse_recovery_costs(read_input_file(options.recovery_costs, Bytes(1 << 20)),
                              options.recovery_costs.string(), costs);
}

ReplaySpeeds speeds_from_templates(const FailureOptions& options, ModelOptions model_options,
                                   const std::string& cluster_name, const Constants& constants,
                                   const AvailabilityTrace& trace) {
  if (model_options.model.empty() || cluster_name.empty() || !options.batch)
    throw UsageError("--failures needs --model M, --cluster C and --batch B, or --plan FILE and --cluster C");
  if (*options.batch < 1 || *options.batch > kMaxMicrobatches)
    throw UsageError("--batch: expected 1 to {}, got {}", kMaxMicrobatches, *options.batch);
  model_options.model = model_path_of(model_options.model);
  const ModelSpec model = resolve(model_options);
  const Cluster cluster = open_cluster(cluster_name);
  Demand demand{model, cluster, optimus_software(), constants};
  demand.batch = *options.batch,
  demand.sequence_length = options.sequence_length.value_or(model.max_positions);
  demand.precision = parse_precision(options.precision, "--precision");
  const int nodes = std::min(cluster.num_present() / options.devices_per_node, max_nodes_of(trace));
  if (nodes < 1)
    throw UsageError("--devices-per-node: {} is more than the number of devices in {}",
                     options.devices_per_node, cluster.name());
  const PipelineTemplates templates = value_or_throw(PipelineTemplates::build(
      demand,
      {.devices_per_node = options.devices_per_node, .max_nodes = nodes, .failures = options.failures}));
  ReplaySpeeds speeds;
  speeds.throughput.min_nodes = speeds.min_nodes = templates.smallest();
  speeds.batch = static_cast<double>(demand.batch);
  for (int n = templates.smallest(); n <= nodes; ++n)
    speeds.throughput.samples_per_second.push_back(speeds.batch / templates.seconds(n));
  speeds.parameters = static_cast<double>(num_parameters(model));
  speeds.dollars_per_second = dollars_per_second(options, cluster);
  speeds.node_bytes_per_second = receive_bytes_per_second(cluster, options.devices_per_node);
  speeds.tokens = static_cast<double>(demand.sequence_length);
  speeds.ready_seconds = options.node_start.value_or(Seconds(0)).value;
  speeds.description = fmt::format("plan templates for {} on {} to {} nodes of {}", model.name,
                                   templates.smallest(), nodes, cluster.name());
  return speeds;
}

}  // namespace optimus
