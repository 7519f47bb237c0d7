// See expected.h.
#include "run/expected.h"

#include "base/error.h"
#include "cluster/open.h"
#include "simulate/simulate.h"

namespace optimus {

std::optional<DeviceType> measured_type(const std::string& name, EventSink& events) {
  std::error_code ignored;
  if (!std::filesystem::exists(measured_cluster_path(), ignored)) return std::nullopt;
  try {
    const Cluster here = open_cluster("here");
    for (const DeviceType& type : here.profile().types)
      if (type.name == name) return type;
  } catch (const UserError& error) {
    events.report(Warning{fmt::format("{}; optimus profile --hardware writes it anew", error.what())});
  }
  return std::nullopt;
}

std::optional<double> expected_step_seconds(const DeviceType& type, const Plan& plan,
                                            const ModelSpec& model) {
  if (model.is_custom() || num_devices(plan) != 1) return std::nullopt;
  HardwareProfile profile;
  profile.name = "here", profile.types = {type};
  const LinkSpec unused{.bytes_per_second = 1, .latency = Seconds(0), .efficiency = {}};
  NodeGroup& group = profile.groups.emplace_back();
  group.num_devices = group.devices_per_node = group.devices_per_domain = 1;
  group.domain_link = group.node_link = group.host_link = group.network.nic = unused;
  const Cluster cluster(profile);
  const DeviceMap map = DeviceMap::identity(1);
  const ProductFormat format = format_of(plan.precision);
  if (DeviceCost(type, 1, our_software(), fitted_constants()).measured(format.format) == nullptr)
    return std::nullopt;
  return StepSimulator({plan, model, cluster, map, our_software(), format}).seconds(fitted_constants());
}

}  // namespace optimus
