// The commands that need libtorch. This folder builds two programs: `optimus`, which does not link libtorch
// and therefore starts in milliseconds, and `optimus-engine`, which links libtorch. `optimus` parses all
// commands and their flags, and executes `optimus-engine` for the commands that need libtorch
// (exec_engine.cpp). `optimus-engine` implements these commands (engine_train.cpp, engine_eval.cpp, …).
#pragma once

#include <optional>

#include "checkpoint/convert.h"
#include "cli/console.h"
#include "settings/inference_options.h"
#include "settings/options.h"
#include "settings/probe_options.h"

namespace optimus {

// The int results are exit codes. All functions throw UserError.
int run_training(TrainOptions& options, OptionTable& table, Console& console);
// Adds a worker to a running training. An empty `device` means a GPU if there is one, otherwise the CPU.
int run_joining(const Path& run, const std::string& device, int threads, Console& console);
int run_evaluation(const EvalOptions& options, Console& console);
int run_generation(const TextOptions& options, Console& console);
// The output of `optimus profile --hardware`. The measured hardware has already been written to a file.
struct HardwareReport {
  OrderedJson json;
  std::string text;
};
HardwareReport report_hardware(const ProbeOptions& options, Console& console);
// The output of `optimus profile --links`, which ranks started by a launcher run together. Only rank 0 has
// output.
struct LinksReport {
  int code = 0;  // exit code of the process
  std::optional<HardwareReport> output;
};
LinksReport report_links(const ProbeOptions& options, Console& console);
// Converts the model and compares the logits of the original and the converted model.
int run_conversion(const ConvertOptions& options, Console& console);

}  // namespace optimus
