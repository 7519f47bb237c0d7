// Implements expected.h.
#include "settings/expected.h"

#include <algorithm>

#include "base/error.h"
#include "cluster/open.h"
#include "simulate/report.h"

namespace optimus {
namespace {

bool has_measured(const DeviceType& type, Precision precision) {
  return DeviceCost(type, 1, optimus_software(), fitted_constants())
             .measured_kernels(format_of(precision).format) != nullptr;
}

}  // namespace

std::optional<DeviceType> measured_type(const std::string& name, EventSink& events) {
  std::error_code ignored;
  if (!std::filesystem::exists(measured_cluster_path(), ignored)) return std::nullopt;
  try {
    const Cluster measured_cluster = open_cluster("here");
    for (const DeviceType& type : measured_cluster.profile().types)
      if (type.name == name) return type;
  } catch (const ReportedError& error) {
    events.report(
        Warning{fmt::format("{}; run optimus profile --hardware to recreate the file", error.what())});
  }
  return std::nullopt;
}

std::optional<MeasuredMachine> measured_machine(const std::string& name, bool is_gpu, int num_devices,
                                                int workers_per_processor, Precision precision,
                                                EventSink& events) {
  const std::optional<DeviceType> type = measured_type(name, events);
  if (!type || !has_measured(*type, precision)) return std::nullopt;
  return MeasuredMachine{Cluster(replicate_device(open_cluster("here").profile(), *type, num_devices,
                                                  is_gpu ? 1 : workers_per_processor)),
                         with_measured_links(fitted_constants())};
}

std::optional<double> expected_step_seconds(const DeviceType& type, const Plan& plan,
                                            const ModelSpec& model) {
  if (model.is_custom() || num_devices(plan) != 1) return std::nullopt;
  HardwareProfile profile;
  profile.name = "here", profile.types = {type};
  const LinkSpec unused_link{.bytes_per_second = 1, .latency = Seconds(0), .efficiency = {}};
  NodeGroup& group = profile.groups.emplace_back();
  group.num_devices = group.devices_per_node = group.devices_per_domain = 1;
  group.domain_link = group.node_link = group.host_link = group.network.nic = unused_link;
  const Cluster cluster(profile);
  const DeviceMap map = DeviceMap::identity(1);
  if (!has_measured(type, plan.precision)) return std::nullopt;
  return StepSimulator({plan, model, cluster, map, optimus_software(), format_of(plan.precision)})
      .seconds(fitted_constants());
}

std::optional<ExpectedStep> expected_step(const std::string& name, bool is_gpu, const Plan& plan,
                                          const ModelSpec& model, EventSink& events) {
  if (model.is_custom()) return std::nullopt;
  // The device indices of a plan may have gaps, so their range is larger than the number of devices.
  const int num_indices = num_device_numbers(plan);
  const auto measured =
      measured_machine(name, is_gpu, num_indices, num_devices(plan), plan.precision, events);
  const Cluster cluster =
      measured ? measured->cluster : open_cluster(fmt::format("{}x{}", name, num_indices));
  const DeviceMap map = DeviceMap::identity(num_indices);
  const StepSimulator simulator({plan, model, cluster, map, optimus_software(), format_of(plan.precision)});
  const Constants constants = measured ? measured->constants : fitted_constants();
  return ExpectedStep{
      measured ? "the measurements of this machine"
               : fmt::format("typical values for {} (run optimus profile --hardware to measure this machine)",
                             name),
      simulator.run(constants), simulator.instructions(constants, kMaxTracedInstructions)};
}

std::vector<double> predicted_seconds(const std::string& type, const Plan& plan, const ModelSpec& model,
                                      const Program& program) {
  if (model.is_custom()) return {};
  const int size = num_device_numbers(plan);
  const Cluster cluster = open_cluster(fmt::format("{}x{}", type, size));
  const DeviceMap map = DeviceMap::identity(size);
  const Software software = optimus_software();
  const Setup setup{plan, model, cluster, map, software, format_of(plan.precision)};
  const ModelWork work = work_of(model, plan.sequence_length);
  return PricedProgram(setup, work, program, Device{0}).price(fitted_constants());
}

}  // namespace optimus
