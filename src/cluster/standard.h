// Hardware by name: the shipped device types, the node that each usually sits in, and names such as
// "h100x512" or "a100x16+v100x32".
//
// Peaks, bandwidths and memory are the makers' figures (dense, one direction). Efficiency curves and
// latencies are estimates for planning before anything was measured; a probe of the real machine replaces
// them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/hardware.h"

namespace optimus {

// "h100", "a100-40", "v100" (the 32 GB one), … Nothing when there is no such type.
std::optional<DeviceType> find_device_type(std::string_view name);
std::vector<std::string> device_type_names();
// The type that a maker's name speaks of: "NVIDIA A100-SXM4-80GB" is a100-80 (a100 is another name of it).
std::optional<DeviceType> find_type_in(std::string_view makers_name);

// So many devices of a shipped type in its usual nodes and network. `type` is the index that the group shall
// have. Throws UserError for an unknown type.
NodeGroup standard_group(std::string_view type_name, int type, int num_devices);

// Whether the text has the form of such a name (it may still name an unknown type).
bool looks_like_cluster_name(std::string_view name);

// "h100x512", "a100x16+v100x32": one group for each part, all in one island. Throws UserError that names the
// part, the nearest type and all types.
HardwareProfile standard_cluster(const std::string& name);

}  // namespace optimus
