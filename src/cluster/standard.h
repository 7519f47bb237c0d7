// Standard hardware by name: the built-in device types, the usual node for each type, and cluster names such
// as "h100x512" or "a100x16+v100x32".
//
// Peaks, bandwidths and memory sizes are the vendors' specifications (dense, one direction). Efficiency
// curves and latencies are estimates for planning before any measurement. A probe of the real machine
// replaces them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/hardware.h"

namespace optimus {

// Finds a built-in type by name, such as "h100", "a100-40" or "v100" (the 32 GB version). Returns nullopt if
// there is no such type.
std::optional<DeviceType> find_device_type(std::string_view name);
std::vector<std::string> device_type_names();
// The type for a vendor's device name. For "NVIDIA A100-SXM4-80GB" it is a100-80, because a100 is an alias of
// a100-80.
std::optional<DeviceType> find_type_by_vendor_name(std::string_view vendor_name);

// A group of `num_devices` devices of a built-in type with the usual nodes and network. `type` becomes the
// type index of the group. Throws a UserError for an unknown type.
NodeGroup standard_group(std::string_view type_name, int type, int num_devices);

// Whether the text has the form of a cluster name. The device types in it may still be unknown.
bool looks_like_cluster_name(std::string_view name);

// Expands a name such as "h100x512" or "a100x16+v100x32" to a profile with one group per part, all in one
// island. Throws a UserError with the part, the nearest known type and all known types if the name is
// invalid.
HardwareProfile standard_cluster(const std::string& name);

}  // namespace optimus
