// HardwareProfile: the machines a run has, as plain data. Written by hand, expanded from a name such as
// "h100x512" (cluster/standard.h), or measured by a probe. Nothing here is looked up quickly: that is
// cluster/cluster.h. The JSON form is described in cluster/hardware_json.h.
//
// Devices are numbered group by group, node by node. A missing device keeps its number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "cluster/curve.h"
#include "cluster/kernel_times.h"

namespace optimus {

// Dense products, operations per second; 0: the device has no such arithmetic.
struct PeakFlops {
  double fp64 = 0, fp32 = 0, tf32 = 0, bf16 = 0, fp16 = 0, fp8 = 0, fp4 = 0;
  bool operator==(const PeakFlops&) const = default;
};

struct DeviceType {
  std::string name;  // "h100"
  Bytes memory{};
  PeakFlops peak{};
  double memory_bytes_per_second = 0;
  double watts = 0;
  std::optional<double> price_per_hour{};
  Curve product_efficiency{};          // of the peak, over the edge of a cube of the same work
  std::vector<KernelTimes> kernels{};  // measured, at most one for a format
  bool operator==(const DeviceType&) const = default;
};

// One direction, what one device gets while the others rest.
struct LinkSpec {
  double bytes_per_second = 0;
  Seconds latency{};
  Curve efficiency{};  // over bytes of a message
  bool operator==(const LinkSpec&) const = default;
};

struct NetworkSpec {
  int nics_per_node = 1;
  LinkSpec nic;
  double oversubscription = 1;  // under full load, traffic between nodes gets 1 / this of the NICs' bandwidth
  bool operator==(const NetworkSpec&) const = default;
};

// Equal nodes in one island. The last node and the last domain may be smaller.
struct NodeGroup {
  int type = 0;  // index into HardwareProfile::types
  int island = 0;
  int num_devices = 0, devices_per_node = 8;
  // Devices joined by the fast link (NVLink): a part of a node, a node, or several nodes (NVL72).
  int devices_per_domain = 8;
  LinkSpec domain_link;  // inside a domain
  LinkSpec node_link;    // inside a node, between domains
  LinkSpec host_link;    // between a device and its host's memory
  Bytes host_memory;     // of a node
  NetworkSpec network;
  bool operator==(const NodeGroup&) const = default;

  int num_nodes() const { return (num_devices + devices_per_node - 1) / devices_per_node; }
  int num_domains() const { return (num_devices + devices_per_domain - 1) / devices_per_domain; }
};

// What joins two islands, one direction, all their devices together.
struct IslandLink {
  int first = 0, second = 0;  // islands, first < second
  double bytes_per_second = 0;
  Seconds latency{};
  bool operator==(const IslandLink&) const = default;
};

struct SpeedFactor {
  int device = 0;
  double factor = 1;  // 0.5: half as fast as its type
  bool operator==(const SpeedFactor&) const = default;
};

struct HardwareProfile {
  std::string name;
  std::vector<DeviceType> types;
  std::vector<NodeGroup> groups;
  std::vector<IslandLink> island_links;    // one for each pair of islands
  std::vector<SpeedFactor> speed_factors;  // devices ascend; others have 1
  std::vector<int> missing_devices;        // ascend
  bool operator==(const HardwareProfile&) const = default;
};

inline constexpr int kMostDevices = 1'000'000;
inline constexpr int kMostIslands = 100;
inline constexpr int kMostDeviceTypes = 1'000;
inline constexpr int kMostNodeGroups = 10'000;

// Throws UserError, one sentence that begins with `source` and names the group or type, the value and what
// would be right.
void validate(const HardwareProfile& profile, const std::string& source);

// Operations per second in that format; 0 where the device has none.
double peak_flops(const DeviceType& type, NumberFormat format);

}  // namespace optimus
