// The flags --software and --history of the commands that predict.
#pragma once

#include <string>

#include "cluster/cluster.h"
#include "cost/correction.h"
#include "cost/software.h"

namespace optimus {

// The software of this trainer if the name is empty. Throws UserError that lists all names if the name is
// unknown.
const Software& software_named(const std::string& name);

// The inputs of a prediction; with --history, corrected by the measurements of past runs.
struct PredictionInputs {
  Cluster cluster;
  Constants constants;
  std::string description;  // one line about the corrections; empty without a history
  std::vector<Residual> used;
};
// Takes the name of a cluster and of a history: a file, "here", or empty. Throws UserError.
PredictionInputs prediction_inputs(const std::string& cluster, const std::string& history,
                                   const Constants& constants);

}  // namespace optimus
