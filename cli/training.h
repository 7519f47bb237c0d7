// Where commands that need libtorch are run. Two programs are made from this folder: `optimus`, which starts in milliseconds and
// has no libtorch, and `optimus-engine` beside it, which has. The first knows all commands and their flags and hands those that
// compute over to the second (hand_over.cpp); the second does them (train_here.cpp, eval_here.cpp, …).
#pragma once

#include <optional>

#include "checkpoint/convert.h"
#include "cli/console.h"
#include "settings/inference_options.h"
#include "settings/options.h"
#include "settings/probe_options.h"

namespace optimus {

// Each returns the exit code and throws UserError.
int run_training(TrainOptions& options, OptionTable& table, Console& console);
// A worker more for a run that is under way; device: empty, as the run's.
int run_joining(const Path& run, const std::string& device, int threads, Console& console);
int run_evaluation(const EvalOptions& options, Console& console);
int run_generation(const TextOptions& options, Console& console);
// What `optimus profile --hardware` shows of this machine, after it was measured and written.
struct HardwareReport {
  OrderedJson json;
  std::string text;
};
HardwareReport report_hardware(const ProbeOptions& options, Console& console);
// The same of hosts that were measured by ranks of a launcher. Rank 0 has it; nothing on the others.
struct LinksReport {
  int code = 0;  // of the process
  std::optional<HardwareReport> shown;
};
LinksReport report_links(const ProbeOptions& options, Console& console);
// Converts, and compares the logits of both sides.
int run_conversion(const ConvertOptions& options, Console& console);

}  // namespace optimus
