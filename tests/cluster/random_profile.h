// Valid hardware profiles of all kinds; a pure function of the seed.
#pragma once

#include <random>
#include <set>

#include "cluster/hardware.h"

namespace optimus {

inline HardwareProfile random_profile(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<std::uint64_t>(bound));
  };
  const auto amount = [&](double scale) { return scale * (1 + below(1000)) / 7; };
  const auto curve = [&] {
    Curve result;
    CurvePoint point{1, 0.01};
    for (int i = below(4); i > 0; --i) {
      point.size *= 1.5 + below(100), point.fraction = std::min(1.0, point.fraction + below(40) / 100.0);
      result.points.push_back(point);
    }
    return result;
  };
  const auto link = [&](double scale) { return LinkSpec{amount(scale), Seconds(amount(1e-6)), curve()}; };
  HardwareProfile profile;
  profile.name = "random-" + std::to_string(seed);
  for (int i = 0, n = 1 + below(3); i < n; ++i) {
    DeviceType type{.name = "type" + std::to_string(i), .memory = Bytes(1 + below(1 << 30))};
    type.peak = {amount(1e12), amount(1e12), 0, amount(1e13), amount(1e13), below(2) * 1e15, 0};
    type.memory_bytes_per_second = amount(1e11), type.watts = below(1000);
    if (below(2)) type.price_per_hour = amount(1);
    type.gemm_efficiency = curve();
    for (const NumberFormat format : {NumberFormat::fp32, NumberFormat::bf16}) {
      if (below(2)) continue;
      KernelTimes& times = type.kernels.emplace_back();
      times.format = format, times.launch_seconds = amount(1e-7), times.step_seconds = amount(1e-6);
      times.tables["rope"] = {{{1 + amount(1), 1e4}}, {amount(1e9), amount(1e9)}};
      times.tables["product"] = {{{8}, {1, 2}, {3}}, {amount(1e9), amount(1e9)}};
    }
    profile.types.push_back(type);
  }
  int num_devices = 0;
  const int num_groups = 1 + below(6), num_islands = 1 + below(std::min(num_groups, 3));
  for (int i = 0; i < num_groups; ++i) {
    NodeGroup group;
    group.type = below(static_cast<int>(profile.types.size()));
    group.island = i < num_islands ? i : below(num_islands);
    group.num_devices = 1 + below(40);
    group.devices_per_node = 1 + below(8);
    group.devices_per_domain = group.devices_per_node * (below(2) ? 1 : 1 + below(4));
    if (group.devices_per_node % 2 == 0 && below(2)) group.devices_per_domain = group.devices_per_node / 2;
    group.domain_link = link(1e9), group.node_link = link(1e8), group.host_link = link(1e8);
    group.host_memory = Bytes(below(1 << 30));
    group.network = {1 + below(9), link(1e7), 1 + below(8) / 2.0};
    num_devices += group.num_devices;
    profile.groups.push_back(group);
  }
  for (int a = 0; a < num_islands; ++a)
    for (int b = a + 1; b < num_islands; ++b)
      profile.island_links.push_back({a, b, amount(1e6), Seconds(amount(1e-3))});
  std::set<int> chosen;
  for (int i = below(4); i > 0; --i) chosen.insert(below(num_devices));
  for (const int device : chosen) profile.speed_factors.push_back({device, amount(0.01)});
  if (static_cast<int>(chosen.size()) < num_devices)
    profile.missing_devices.assign(chosen.begin(), chosen.end());
  return profile;
}

}  // namespace optimus
