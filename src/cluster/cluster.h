// Cluster: a validated HardwareProfile with fast queries: the type, node, domain and island of a device, and
// the link between two devices. Queries take O(log groups) time, and memory is O(groups). A Cluster is
// immutable and therefore thread-safe.
//
// Plans refer to virtual devices, which cluster/device_map.h maps to physical devices.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "cluster/hardware.h"

namespace optimus {

// A physical device, identified by its index in the profile.
struct Device {
  int value = 0;
  constexpr auto operator<=>(const Device&) const = default;
};

// The closest unit that two devices share, in order of increasing distance. `islands` means that they are in
// different islands.
enum class LinkClass { same_device, domain, node, network, islands };

struct Link {
  LinkClass kind = LinkClass::same_device;
  double bytes_per_second = 0;  // in one direction while the other devices are idle
  // The bandwidth in one direction while all devices of both nodes (or islands) send.
  double shared_bytes_per_second = 0;
  Seconds latency{};
  // The fraction of `bytes_per_second` that is reached, as a function of the message size in bytes. nullptr
  // means 1 for every size. The pointer is valid while the cluster exists.
  const Curve* efficiency = nullptr;

  double efficiency_of(Bytes message) const {
    return efficiency == nullptr ? 1 : efficiency->at(static_cast<double>(message.value));
  }
};

class Cluster {
 public:
  // Throws a UserError if the profile is invalid (see validate()). `source` is the file or name that messages
  // show.
  explicit Cluster(HardwareProfile profile, const std::string& source = "cluster");

  const HardwareProfile& profile() const { return profile_; }
  const std::string& name() const { return profile_.name; }

  int num_devices() const { return num_devices_; }  // including missing devices
  int num_present() const { return num_devices_ - static_cast<int>(profile_.missing_devices.size()); }
  int num_nodes() const { return num_nodes_; }
  int num_domains() const { return num_domains_; }
  int num_islands() const { return static_cast<int>(island_sizes_.size()); }

  bool is_present(Device device) const;
  std::vector<Device> present_devices() const;
  const DeviceType& type_of(Device device) const;
  const NodeGroup& group_of(Device device) const;
  double speed_of(Device device) const;  // relative to the nominal speed of the device's type
  int node_of(Device device) const;
  int domain_of(Device device) const;
  int island_of(Device device) const;

  Link link(Device from, Device to) const;

 private:
  struct GroupStart {
    int device, node, domain;
  };
  std::size_t group_index(Device device) const;
  Link network_link(const NodeGroup& from, const NodeGroup& to) const;
  Link island_link(const NodeGroup& from, const NodeGroup& to) const;

  HardwareProfile profile_;
  std::vector<GroupStart> starts_;        // first device, node and domain of each group
  std::vector<int> island_sizes_;         // number of devices in each island
  std::vector<IslandLink> island_links_;  // sorted
  int num_devices_ = 0, num_nodes_ = 0, num_domains_ = 0;
};

// The total bytes per second that `devices` devices of the first node receive from other nodes in the same
// island, or nullopt if there are no other nodes.
std::optional<double> receive_bytes_per_second(const Cluster& cluster, int devices);

std::string text(LinkClass kind);  // "network"

// A summary in a few aligned lines.
std::string text(const Cluster& cluster);

}  // namespace optimus
