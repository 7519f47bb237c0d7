// DeviceMap: maps each virtual device of a plan to a physical device. A DeviceMap is a plain value: when a
// device is lost, a new map is created.
#pragma once

#include <compare>
#include <optional>
#include <utility>
#include <vector>

#include "cluster/cluster.h"

namespace optimus {

// A device in a plan, identified by its 0-based index.
struct VirtualDevice {
  int value = 0;
  constexpr auto operator<=>(const VirtualDevice&) const = default;
};

class DeviceMap {
 public:
  DeviceMap() = default;                                // no devices
  static DeviceMap identity(int num_devices);           // virtual device i is physical device i
  static DeviceMap of_present(const Cluster& cluster);  // the present devices in ascending order
  // Virtual device i is devices[i]. Throws a UserError if two devices are equal or one is negative.
  explicit DeviceMap(std::vector<Device> devices);

  int size() const { return static_cast<int>(physical_.size()); }
  Device operator[](VirtualDevice device) const { return physical_[static_cast<std::size_t>(device.value)]; }
  // The virtual device that is mapped to `device`, or nullopt if there is none. Takes O(log size) time.
  std::optional<VirtualDevice> virtual_of(Device device) const;
  const std::vector<Device>& devices() const { return physical_; }
  bool operator==(const DeviceMap& other) const { return physical_ == other.physical_; }

 private:
  std::vector<Device> physical_;
  std::vector<std::pair<Device, VirtualDevice>> sorted_;  // sorted by physical device
};

// Throws a UserError if the map contains a device that is not in the cluster or is missing.
void check(const DeviceMap& map, const Cluster& cluster);

}  // namespace optimus
