// The planner: finds the best parallel plan for a model on a cluster. It needs neither GPUs nor PyTorch.
//
//   optimus::PlanResult best =
//       optimus::plan({.model = "llama3-70b", .cluster = "h100x512", .batch = 1024, .seq = 8192});
//   std::ofstream("plan.json") << best.plan;
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "optimus/error.h"
#include "optimus/export.h"

namespace optimus {
inline namespace v0 {

struct PlanOptions {
  std::string model;    // a preset, a Hugging Face folder or a config.json
  std::string cluster;  // "h100x512", "a100x16+v100x32", or a hardware file
  std::int64_t batch = 0;
  std::optional<std::int64_t> seq{};  // default: the model's maximum sequence length
  std::string precision = "bf16";
  // Constraints and model overrides. The keys are the option names in `optimus plan --help`, for example
  // {"tp", "1..8"}, {"zero", "3"}, {"layers", "24"}.
  std::map<std::string, std::string> more{};
};

struct Prediction {
  double step_seconds = 0, tokens_per_second = 0;
  std::optional<double> mfu{};    // 0 to 1
  std::int64_t memory_bytes = 0;  // on the device that needs the most
};

struct PlanAlternative {
  std::string name;    // "tp4 pp2 dp64 zero1"
  std::string reason;  // why it is not the best
  double step_seconds = 0;
};

struct PlanResult {
  std::string name;  // "tp2 sp1 cp2 dp128 zero3"
  std::string plan;  // JSON text, for TrainOptions::plan (as a file), Run::switch_plan and simulate()
  Prediction predicted;
  std::vector<PlanAlternative> alternatives;
  std::string json;  // the output of `optimus plan --json`, which includes all of the above
};

// Throws Error when no plan fits or an option is wrong. May be called from any thread.
OPTIMUS_API PlanResult plan(const PlanOptions& options);

}  // namespace v0
}  // namespace optimus
