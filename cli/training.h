// The commands that need libtorch. This folder builds two programs: `optimus`, which starts in milliseconds
// and has no libtorch, and `optimus-engine` next to it, which has. The first knows all commands and their
// flags and executes the second for those that compute (exec_engine.cpp); the second implements them
// (train_here.cpp, eval_here.cpp, …).
#pragma once

#include <optional>

#include "checkpoint/convert.h"
#include "cli/console.h"
#include "settings/inference_options.h"
#include "settings/options.h"
#include "settings/probe_options.h"

namespace optimus {

// Each function returns the exit code and throws UserError.
int run_training(TrainOptions& options, OptionTable& table, Console& console);
// Adds a worker to a running training. An empty `device` means the run's device type.
int run_joining(const Path& run, const std::string& device, int threads, Console& console);
int run_evaluation(const EvalOptions& options, Console& console);
int run_generation(const TextOptions& options, Console& console);
// The result of `optimus profile --hardware`, after it was measured and written.
struct HardwareReport {
  OrderedJson json;
  std::string text;
};
HardwareReport report_hardware(const ProbeOptions& options, Console& console);
// The same for hosts that the ranks of a launcher have measured. Only rank 0 has a report.
struct LinksReport {
  int code = 0;  // exit code of the process
  std::optional<HardwareReport> output;
};
LinksReport report_links(const ProbeOptions& options, Console& console);
// Converts the model, and compares the logits of both sides.
int run_conversion(const ConvertOptions& options, Console& console);

}  // namespace optimus
