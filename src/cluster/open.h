// A cluster by the name that a user gives: "h100x512", "a100x16+v100x32", or a JSON file.
#pragma once

#include <string>

#include "cluster/cluster.h"

namespace optimus {

// A name of that form comes first; "./h100x8" means the file. Throws UserError.
Cluster open_cluster(const std::string& name_or_path);

}  // namespace optimus
