// Implements the writer of hardware_json.h.
#include "cluster/hardware_json.h"

namespace optimus {
namespace {

OrderedJson curve_json(const Curve& curve) {
  OrderedJson result = OrderedJson::array();
  for (const CurvePoint& point : curve.points)
    result.push_back(OrderedJson::array({point.size, point.fraction}));
  return result;
}

OrderedJson kernels_json(const KernelTimes& times) {
  OrderedJson result;
  result["format"] = text(times.format);
  result["launch_seconds"] = times.launch_seconds;
  result["step_seconds"] = times.step_seconds;
  result["tables"] = OrderedJson::object();
  for (const auto& [name, table] : times.tables)
    result["tables"][name] = {{"axes", table.axes}, {"rates", table.rates}};
  return result;
}

OrderedJson type_json(const DeviceType& type) {
  OrderedJson result;
  result["name"] = type.name;
  result["memory"] = type.memory.value;
  for (const NumberFormat format : kAllFormats)
    if (peak_flops(type, format) > 0) result["peak_flops"][text(format)] = peak_flops(type, format);
  result["memory_bytes_per_second"] = type.memory_bytes_per_second;
  result["watts"] = type.watts;
  if (type.price_per_hour) result["price_per_hour"] = *type.price_per_hour;
  result["product_efficiency"] = curve_json(type.gemm_efficiency);
  for (const KernelTimes& times : type.kernels) result["kernels"].push_back(kernels_json(times));
  return result;
}

OrderedJson link_json(const LinkSpec& link) {
  OrderedJson result;
  result["bytes_per_second"] = link.bytes_per_second;
  result["latency_seconds"] = link.latency.value;
  result["efficiency"] = curve_json(link.efficiency);
  return result;
}

OrderedJson group_json(const HardwareProfile& profile, const NodeGroup& group) {
  OrderedJson result;
  result["type"] = profile.types[static_cast<std::size_t>(group.type)].name;
  result["devices"] = group.num_devices;
  result["devices_per_node"] = group.devices_per_node;
  result["devices_per_domain"] = group.devices_per_domain;
  result["domain_link"] = link_json(group.domain_link);
  result["node_link"] = link_json(group.node_link);
  result["host_link"] = link_json(group.host_link);
  result["host_memory"] = group.host_memory.value;
  result["network"] = link_json(group.network.nic);
  result["network"]["nics_per_node"] = group.network.nics_per_node;
  result["network"]["oversubscription"] = group.network.oversubscription;
  result["island"] = group.island;
  return result;
}

}  // namespace

OrderedJson to_json(const HardwareProfile& profile) {
  OrderedJson result;
  result["name"] = profile.name;
  for (const char* list : {"device_types", "groups", "island_links", "speed_factors", "missing_devices"})
    result[list] = OrderedJson::array();
  for (const DeviceType& type : profile.types) result["device_types"].push_back(type_json(type));
  for (const NodeGroup& group : profile.groups) result["groups"].push_back(group_json(profile, group));
  for (const IslandLink& link : profile.island_links)
    result["island_links"].push_back({{"islands", {link.first, link.second}},
                                      {"bytes_per_second", link.bytes_per_second},
                                      {"latency_seconds", link.latency.value}});
  for (const SpeedFactor& entry : profile.speed_factors)
    result["speed_factors"].push_back(OrderedJson::array({entry.device, entry.factor}));
  for (const int device : profile.missing_devices) result["missing_devices"].push_back(device);
  return result;
}

}  // namespace optimus
