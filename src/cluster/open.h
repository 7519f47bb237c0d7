// A cluster by the name that a user gives: "h100x512", "a100x16+v100x32", or a JSON file.
#pragma once

#include <string>

#include "base/file.h"
#include "cluster/cluster.h"

namespace optimus {

// Where the probe keeps what it measured of this machine: in the user's cache folder.
Path measured_cluster_path();

// "here" is this machine as it was measured, "herex2" two workers on it. A name of that form comes first; "./h100x8" means the file.
// Throws UserError.
Cluster open_cluster(const std::string& name_or_path);
// "here", "herex2": whose links are as they were measured, not as makers state them.
bool is_measured_here(const std::string& name);

// So many devices of one type, joined as the measured machine's are; where they share a processor each is such a part of it.
HardwareProfile several_of(HardwareProfile measured, const DeviceType& type, int num_devices,
                           int num_sharing);

}  // namespace optimus
