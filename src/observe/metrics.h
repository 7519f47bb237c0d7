// The metrics of a finished training step, and the file metrics.jsonl that stores them: one JSON object per
// line. observe/progress.h displays them, and observe/tensorboard.h writes a copy for TensorBoard.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/units.h"
#include "observe/log_file.h"

namespace optimus {

// A finished checkpoint, with the pause of the training and the time of the concurrent write.
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

// The line of metrics.jsonl, without newline. Numbers are written exactly; those that are not finite are
// null.
std::string metrics_line(const StepMetrics& metrics);

// One thread at a time.
class MetricsFile {
 public:
  // Keeps the lines up to step `last_step` (none if 0), so that a resumed run writes each step once; drops
  // the rest and an unterminated last line. The file is replaced atomically: a reader sees the old or the
  // new one. Throws UserError if one of these lines is invalid. `check` is called when the new file is
  // complete and the old one still exists; if it throws, the old file is kept.
  static Outcome<MetricsFile> open(FileSystem& files, const Path& path, std::int64_t last_step,
                                   const std::function<void()>& check = {});

  // The first write error is returned and names the file; later lines are dropped and report success.
  Outcome<void> append(const StepMetrics& metrics) { return append_line(metrics_line(metrics)); }
  Outcome<void> append_line(const std::string& line) { return log_.write(line + "\n"); }

 private:
  explicit MetricsFile(LogFile log) : log_(std::move(log)) {}
  LogFile log_;
};

// Completes a file to which no process writes anymore: drops lines after `step`, like open(), and adds
// `line`, the line of that step, if it is missing.
Outcome<void> complete_metrics(FileSystem& files, const Path& path, std::int64_t step,
                               const std::string& line, const std::function<void()>& check = {});

}  // namespace optimus
