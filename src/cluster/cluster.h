// Cluster: a checked HardwareProfile with quick answers: which type, node, domain and island a device is in,
// and what joins two devices. O(log groups) each; memory O(groups). Immutable, so any thread may ask.
//
// Plans name virtual devices; cluster/device_map.h says which physical one each is.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "cluster/hardware.h"

namespace optimus {

// A physical device, by its number in the profile.
struct Device {
  int value = 0;
  constexpr auto operator<=>(const Device&) const = default;
};

// The closest thing that two devices share, from near to far.
enum class LinkClass { same_device, domain, node, network, islands };

struct Link {
  LinkClass kind = LinkClass::same_device;
  double bytes_per_second = 0;         // one direction, while the other devices rest
  double shared_bytes_per_second = 0;  // one direction, while all devices of the two nodes (islands) send too
  Seconds latency{};
  const Curve* efficiency = nullptr;  // over bytes of a message; lives as long as the cluster; none: 1

  double efficiency_of(Bytes message) const {
    return efficiency == nullptr ? 1 : efficiency->at(static_cast<double>(message.value));
  }
};

class Cluster {
 public:
  // Throws UserError (see validate). `source` is the file or name it came from, for messages.
  explicit Cluster(HardwareProfile profile, const std::string& source = "cluster");

  const HardwareProfile& profile() const { return profile_; }
  const std::string& name() const { return profile_.name; }

  int num_devices() const { return num_devices_; }  // missing ones too
  int num_present() const { return num_devices_ - static_cast<int>(profile_.missing_devices.size()); }
  int num_nodes() const { return num_nodes_; }
  int num_domains() const { return num_domains_; }
  int num_islands() const { return static_cast<int>(island_sizes_.size()); }

  bool is_present(Device device) const;
  std::vector<Device> present_devices() const;
  const DeviceType& type_of(Device device) const;
  const NodeGroup& group_of(Device device) const;
  double speed_of(Device device) const;  // factor on what its type does
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
  std::vector<GroupStart> starts_;        // of each group
  std::vector<int> island_sizes_;         // devices of each island
  std::vector<IslandLink> island_links_;  // sorted
  int num_devices_ = 0, num_nodes_ = 0, num_domains_ = 0;
};

// Bytes a second that so many devices of the first node receive from other nodes of its island, all at once; nothing where there are none.
std::optional<double> received_per_second(const Cluster& cluster, int devices);

std::string text(LinkClass kind);  // "network"

// A few aligned lines for people.
std::string text(const Cluster& cluster);

}  // namespace optimus
