// The commands that need libtorch. This folder builds two programs: `optimus`, which does not link libtorch
// and therefore starts in milliseconds, and `optimus-engine` next to it, which links it. The first parses all
// commands and their flags, and executes the second for those that need libtorch (exec_engine.cpp); the
// second implements them (engine_train.cpp, engine_eval.cpp, …).
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
// The output of `optimus profile --hardware`, after the result was measured and written to a file.
struct HardwareReport {
  OrderedJson json;
  std::string text;
};
HardwareReport report_hardware(const ProbeOptions& options, Console& console);
// The output of a measurement of the links between hosts by the ranks of a launcher. Only rank 0 has an
// output.
struct LinksReport {
  int code = 0;  // exit code of the process
  std::optional<HardwareReport> output;
};
LinksReport report_links(const ProbeOptions& options, Console& console);
// Converts the model, and compares the logits of the original and the converted model.
int run_conversion(const ConvertOptions& options, Console& console);

}  // namespace optimus
