// The simulator: predicts the time and memory of one training step with a plan on a cluster. Needs neither
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
  std::string model{};                        // default: the model that the plan names
  std::map<std::string, std::string> more{};  // overrides of the model: {"layers", "24"}
};

struct SimulateResult {
  Prediction predicted;
  // Fractions of the step time: "compute", "tp", "pp", "dp", "bubble", "optimizer", …
  std::map<std::string, double> time;
  std::string json;  // as `optimus simulate --json` prints it
};

// Throws Error when the plan does not match the model or the cluster. May be called from any thread.
OPTIMUS_API SimulateResult simulate(const SimulateOptions& options);

}  // namespace v0
}  // namespace optimus
