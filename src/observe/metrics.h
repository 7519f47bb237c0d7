// The metrics of a completed training step, and the file metrics.jsonl that stores them as one JSON object
// per line. observe/progress.h displays them, and observe/tensorboard.h writes a copy for TensorBoard.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/units.h"
#include "observe/log_file.h"

namespace optimus {

// A completed checkpoint, with the time for which it paused the training and the time of the concurrent
// write.
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
  std::int64_t epoch = 0;   // of the plan: the number of plan changes so far
  bool is_skipped = false;  // the gradients were not finite; no parameter changed
  std::optional<double> loss_scale{};
  std::optional<double> validation_loss{};  // if this step ended with a validation
  std::optional<double> tflops{};           // 1e12 operations per second, of all devices
  std::optional<double> mfu{};              // model FLOPs utilization: fraction of the devices' peak, 0 to 1
  std::optional<Bytes> memory{};            // peak memory of the device that uses the most
  std::optional<SaveMetrics> saved{};       // the checkpoint that was finished during this step
};

// Returns the line of metrics.jsonl, without the newline. Numbers are written exactly. Non-finite numbers are
// written as null.
std::string metrics_line(const StepMetrics& metrics);

// One thread at a time.
class MetricsFile {
 public:
  // Keeps the lines up to step `last_step` (no lines if it is 0), so that a resumed run writes each step
  // once. Later lines and an unterminated last line are dropped. The file is replaced atomically, so readers
  // see either the old or the new content. Throws UserError if one of the kept lines is invalid. `check` is
  // called when the new file is complete and before it replaces the old one. If it throws, the old file is
  // kept.
  static Outcome<MetricsFile> open(FileSystem& files, const Path& path, std::int64_t last_step,
                                   const std::function<void()>& check = {});

  // Returns the first write error, which includes the file name. After that, lines are dropped and success is
  // returned.
  Outcome<void> append(const StepMetrics& metrics) { return append_line(metrics_line(metrics)); }
  Outcome<void> append_line(const std::string& line) { return log_.write(line + "\n"); }

 private:
  explicit MetricsFile(LogFile log) : log_(std::move(log)) {}
  LogFile log_;
};

// Completes a file that no process writes to anymore. Like open(), it drops lines after `step`. If the line
// of that step is missing, it adds `line`.
Outcome<void> complete_metrics(FileSystem& files, const Path& path, std::int64_t step,
                               const std::string& line, const std::function<void()>& check = {});

}  // namespace optimus
