// Describes the hosts of a run as a hardware profile.
#pragma once

#include <string>
#include <vector>

#include "cluster/hardware.h"

namespace optimus {

// Returns a profile with one node per host, where device i is rank i. If the ranks of a host are not
// consecutive, all ranks form one node.
HardwareProfile profile_of(const HardwareProfile& one_node, const std::vector<std::string>& hosts);

}  // namespace optimus
