// HardwareProfile: the machines of a run as plain data. It is written by hand, expanded from a name such as
// "h100x512" (cluster/standard.h), or measured by a probe. For fast queries see cluster/cluster.h. The JSON
// format is described in cluster/hardware_json.h.
//
// Devices are numbered consecutively, group by group and node by node. A missing device keeps its number.
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

// Peak operations per second of dense GEMMs in each format, or 0 if the device does not support the format.
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
  // The fraction of the peak that a GEMM reaches, as a function of n, where an n x n x n GEMM has the same
  // number of operations.
  Curve gemm_efficiency{};
  std::vector<KernelTimes> kernels{};  // measured; at most one entry per number format
  bool operator==(const DeviceType&) const = default;
};

// The performance of a link in one direction when only one device uses it.
struct LinkSpec {
  double bytes_per_second = 0;
  Seconds latency{};
  Curve efficiency{};  // as a function of the message size in bytes
  bool operator==(const LinkSpec&) const = default;
};

struct NetworkSpec {
  int nics_per_node = 1;
  LinkSpec nic;
  // Under full load, traffic between nodes gets 1 / oversubscription of the NICs' bandwidth.
  double oversubscription = 1;
  bool operator==(const NetworkSpec&) const = default;
};

// Identical nodes in one island. The last node and the last domain may be smaller.
struct NodeGroup {
  int type = 0;  // index into HardwareProfile::types
  int island = 0;
  int num_devices = 0, devices_per_node = 8;
  // The number of devices joined by fast links such as NVLink. A domain is a part of a node, a node, or
  // several nodes (NVL72).
  int devices_per_domain = 8;
  LinkSpec domain_link;  // within a domain
  LinkSpec node_link;    // within a node, between domains
  LinkSpec host_link;    // between a device and the memory of its host
  Bytes host_memory;     // per node
  NetworkSpec network;
  bool operator==(const NodeGroup&) const = default;

  int num_nodes() const { return (num_devices + devices_per_node - 1) / devices_per_node; }
  int num_domains() const { return (num_devices + devices_per_domain - 1) / devices_per_domain; }
};

// The link between two islands. The bandwidth is for one direction and is shared by all devices.
struct IslandLink {
  int first = 0, second = 0;  // islands, first < second
  double bytes_per_second = 0;
  Seconds latency{};
  bool operator==(const IslandLink&) const = default;
};

struct SpeedFactor {
  int device = 0;
  double factor = 1;  // relative to the device's type; 0.5 means half as fast
  bool operator==(const SpeedFactor&) const = default;
};

struct HardwareProfile {
  std::string name;
  std::vector<DeviceType> types;
  std::vector<NodeGroup> groups;
  std::vector<IslandLink> island_links;    // one per pair of islands
  std::vector<SpeedFactor> speed_factors;  // sorted by device; devices without an entry have factor 1
  std::vector<int> missing_devices;        // in ascending order
  bool operator==(const HardwareProfile&) const = default;
};

inline constexpr int kMaxDevices = 1'000'000;
inline constexpr int kMaxIslands = 100;
inline constexpr int kMaxDeviceTypes = 1'000;
inline constexpr int kMaxNodeGroups = 10'000;

// Throws a UserError if the profile is invalid. The message starts with `source` and names the group or type,
// the value and the valid values.
void validate(const HardwareProfile& profile, const std::string& source);

// Peak operations per second in `format`, or 0 if the device does not support it.
double peak_flops(const DeviceType& type, NumberFormat format);

}  // namespace optimus
