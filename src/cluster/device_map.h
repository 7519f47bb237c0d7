// DeviceMap: which physical device each virtual device of a plan is. A value; losing a device is a new map.
#pragma once

#include <compare>
#include <optional>
#include <utility>
#include <vector>

#include "cluster/cluster.h"

namespace optimus {

// A device as a plan names it, from 0.
struct VirtualDevice {
  int value = 0;
  constexpr auto operator<=>(const VirtualDevice&) const = default;
};

class DeviceMap {
 public:
  DeviceMap() = default;                                // no devices
  static DeviceMap identity(int num_devices);           // virtual i is physical i
  static DeviceMap of_present(const Cluster& cluster);  // the present devices in their order
  // Virtual i is devices[i]. Throws UserError when two are the same or one is negative.
  explicit DeviceMap(std::vector<Device> devices);

  int size() const { return static_cast<int>(physical_.size()); }
  Device operator[](VirtualDevice device) const { return physical_[static_cast<std::size_t>(device.value)]; }
  // Nothing when no virtual device is on it. O(log size).
  std::optional<VirtualDevice> virtual_of(Device device) const;
  const std::vector<Device>& devices() const { return physical_; }
  bool operator==(const DeviceMap& other) const { return physical_ == other.physical_; }

 private:
  std::vector<Device> physical_;
  std::vector<std::pair<Device, VirtualDevice>> sorted_;  // by physical device
};

// Throws UserError when the map names a device that the cluster does not have or that is missing.
void check(const DeviceMap& map, const Cluster& cluster);

}  // namespace optimus
