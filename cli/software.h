// The flags --software and --history of the commands that make predictions.
#pragma once

#include <string>

#include "cluster/cluster.h"
#include "cost/correction.h"
#include "cost/software.h"

namespace optimus {

// Returns the software with this name, or optimus_software() if the name is empty. If the name is unknown,
// throws UserError that lists all names.
const Software& software_named(const std::string& name);

// The inputs of a prediction. With --history, they are corrected by the measurements of past runs.
struct PredictionInputs {
  Cluster cluster;
  Constants constants;
  std::string description;          // one line about the corrections; empty without a history
  std::vector<Residual> residuals;  // the residuals that were applied
};
// `cluster` is the name of a cluster, and `history` is a file, "here", or empty. Throws UserError.
PredictionInputs prediction_inputs(const std::string& cluster, const std::string& history,
                                   const Constants& constants);

}  // namespace optimus
