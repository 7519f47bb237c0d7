// See device_map.h.
#include "cluster/device_map.h"

#include <algorithm>

#include "base/error.h"

namespace optimus {

DeviceMap::DeviceMap(std::vector<Device> devices) : physical_(std::move(devices)) {
  sorted_.reserve(physical_.size());
  for (std::size_t i = 0; i < physical_.size(); ++i)
    sorted_.emplace_back(physical_[i], VirtualDevice{static_cast<int>(i)});
  std::sort(sorted_.begin(), sorted_.end());
  if (!sorted_.empty() && sorted_.front().first.value < 0)
    throw UserError("device map: virtual device {}: expected a non-negative device number, got {}",
                    sorted_.front().second.value, sorted_.front().first.value);
  for (std::size_t i = 1; i < sorted_.size(); ++i)
    if (sorted_[i].first == sorted_[i - 1].first)
      throw UserError("device map: virtual devices {} and {} are both on device {}",
                      sorted_[i - 1].second.value, sorted_[i].second.value, sorted_[i].first.value);
}

DeviceMap DeviceMap::identity(int num_devices) {
  std::vector<Device> devices;
  for (int i = 0; i < num_devices; ++i) devices.push_back({i});
  return DeviceMap(std::move(devices));
}

DeviceMap DeviceMap::of_present(const Cluster& cluster) { return DeviceMap(cluster.present_devices()); }

std::optional<VirtualDevice> DeviceMap::virtual_of(Device device) const {
  const auto match = std::lower_bound(sorted_.begin(), sorted_.end(), device,
                                      [](const auto& entry, Device target) { return entry.first < target; });
  if (match == sorted_.end() || match->first != device) return std::nullopt;
  return match->second;
}

void check(const DeviceMap& map, const Cluster& cluster) {
  for (int i = 0; i < map.size(); ++i) {
    const Device device = map[VirtualDevice{i}];
    if (device.value >= cluster.num_devices())
      throw UserError("device map: virtual device {} is on device {}, but the cluster has {} devices", i,
                      device.value, cluster.num_devices());
    if (!cluster.is_present(device))
      throw UserError("device map: virtual device {} is on device {}, which is missing", i, device.value);
  }
}

}  // namespace optimus
