// Opens the cluster that a user specifies by name ("h100x512", "a100x16+v100x32") or by the path of a JSON
// file.
#pragma once

#include <string>

#include "base/file.h"
#include "cluster/cluster.h"

namespace optimus {

// The file with the measured profile of this machine, in the user's cache folder.
Path measured_cluster_path();

// "here" is this machine as measured, and "herex2" is two workers on it. Names have precedence over files, so
// a file with the name of a cluster is opened as "./h100x8". Throws a ReportedError.
Cluster open_cluster(const std::string& name_or_path);
// Whether the name is "here" or of the form "herex2". The links of such a cluster are measured, not taken
// from specifications.
bool is_measured_cluster_name(const std::string& name);

// Returns a profile of `num_devices` devices of one type with the links of the measured machine. Each device
// has 1 / `workers_per_processor` of the performance and memory of `type`. Pass a value above 1 if that many
// devices share one CPU.
HardwareProfile replicate_device(HardwareProfile measured_profile, const DeviceType& type, int num_devices,
                                 int workers_per_processor);

}  // namespace optimus
