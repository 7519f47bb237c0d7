// The simulator: predicts the time and memory of one training step with a plan on a cluster. It needs neither
// GPUs nor PyTorch.
//
//   optimus::Prediction step = optimus::simulate({.plan = best.plan, .cluster = "h100x512"}).predicted;
#pragma once

#include <map>
#include <string>

#include "optimus/error.h"
#include "optimus/export.h"
#include "optimus/plan.h"

namespace optimus {
inline namespace v0 {

struct SimulateOptions {
  std::string plan;                           // JSON text or the name of a plan file
  std::string cluster;                        // "h100x512", "a100x16+v100x32", or a hardware file
  std::string model{};                        // default: the model named in the plan
  std::map<std::string, std::string> more{};  // model overrides, for example {"layers", "24"}
};

struct SimulateResult {
  Prediction predicted;
  // Fractions of the step time: "compute", "tp", "pp", "dp", "bubble", "optimizer", …
  std::map<std::string, double> time;
  std::string json;  // the output of `optimus simulate --json`
};

// Throws Error when the plan does not match the model or the cluster. May be called from any thread.
OPTIMUS_API SimulateResult simulate(const SimulateOptions& options);

}  // namespace v0
}  // namespace optimus
