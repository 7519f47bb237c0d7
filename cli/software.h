// Flags of commands that predict: --software, and --history.
#pragma once

#include <string>

#include "cluster/cluster.h"
#include "cost/correction.h"
#include "cost/software.h"

namespace optimus {

// Ours when the name is empty. Throws UserError with all names for one that is not known.
const Software& software_asked(const std::string& name);

// What is predicted from, with --history corrected by what past runs took; else as it is.
struct KnownGround {
  Cluster cluster;
  Constants constants;
  std::string words;  // a line about the corrections; empty without a history
  std::vector<Residual> used;
};
// The name of a cluster, and of a history: a file, "here", or nothing. Throws UserError.
KnownGround ground_asked(const std::string& cluster, const std::string& history, const Constants& constants);

}  // namespace optimus
