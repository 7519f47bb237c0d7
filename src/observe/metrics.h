// What is known of a training step once it is done, and metrics.jsonl, where a run writes it: one JSON object a
// line. Not how it is shown (observe/progress.h) nor TensorBoard's copy of it (observe/tensorboard.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/units.h"
#include "observe/log_file.h"

namespace optimus {

// A checkpoint that was finished: how long the training stood still for it, how long writing took beside the training.
struct SaveMetrics {
  std::int64_t step = 0;
  Bytes bytes{};
  Seconds pause{}, write{};
};

struct StepMetrics {
  std::int64_t step = 0;  // from 1
  double loss = 0, grad_norm = 0, learning_rate = 0;
  std::int64_t tokens = 0;  // of this step, over all devices
  Seconds seconds{};        // of this step
  double tokens_per_second = 0;
  std::int64_t epoch = 0;   // of the plan: how often the run has switched
  bool is_skipped = false;  // the gradients were not finite; no parameter changed
  std::optional<double> loss_scale{};
  std::optional<double> validation_loss{};  // where this step ended with a validation
  std::optional<double> tflops{};           // 1e12 operations a second, of all devices
  std::optional<double> mfu{};              // share of the devices' peak, 0 to 1
  std::optional<Bytes> memory{};            // the peak of the fullest device
  std::optional<SaveMetrics> saved{};       // what was finished during this step
};

// The line of metrics.jsonl, without its end. Numbers read back exactly; those that are not finite are null.
std::string metrics_line(const StepMetrics& metrics);

// One thread at a time.
class MetricsFile {
 public:
  // Keeps the lines up to step `last_step` (0: none), so that a resumed run writes each step once; drops the rest
  // and a last line that a killed writer left unfinished. The file is replaced in one move: a reader sees the old
  // one or the new one. Throws UserError where a line up to there is not one of ours.
  // check: called when the new file is complete and the old one still there; what it throws leaves it so.
  static Outcome<MetricsFile> open(FileSystem& files, const Path& path, std::int64_t last_step,
                                   const std::function<void()>& check = {});

  // Fails once, naming the file; after that lines are dropped.
  Outcome<void> append(const StepMetrics& metrics) { return append_line(metrics_line(metrics)); }
  Outcome<void> append_line(const std::string& line) { return log_.write(line + "\n"); }

 private:
  explicit MetricsFile(LogFile log) : log_(std::move(log)) {}
  LogFile log_;
};

// For a file that nobody writes any more: drops lines behind `step`, as open() does, and adds `line`, that step's, where it is not there.
Outcome<void> complete_metrics(FileSystem& files, const Path& path, std::int64_t step,
                               const std::string& line, const std::function<void()>& check = {});

}  // namespace optimus
