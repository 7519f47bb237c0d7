// Formats the content of the status line: the progress of the training, and events of other activities.
// observe/status_line.h draws the line.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "base/event.h"
#include "observe/metrics.h"
#include "observe/status_line.h"

namespace optimus {

// Shows progress on the status line, and prints warnings above it. Thread-safe.
class StatusLineSink final : public EventSink {
 public:
  explicit StatusLineSink(StatusLine& line) : line_(line) {}
  void report(const Event& event) override;

 private:
  void show(const Progress& progress);

  StatusLine& line_;
  std::mutex mutex_;
  std::string activity_;  // the last activity; begin_time_ is when it began
  Seconds begin_time_;
};

// Estimates the time per step as the median of the means of adjacent groups of steps. So a single pause has
// little influence, but a validation every few steps is fully included.
class StepTimeEstimator {
 public:
  void step_ended(Seconds now);
  std::optional<Seconds> per_step() const;  // empty until two steps have ended: the first one is a warm-up

 private:
  std::optional<Seconds> last_seconds_;
  std::deque<double> intervals_;
};

// Returns, for example, "step 120/2000 loss 3.4123 grad 0.910 lr 3.00e-04 52.10 K tokens/s … ETA 3 m 20 s".
// The least important parts are omitted if the line would exceed `columns`. `total_steps` is 0 if unknown.
std::string progress_text(const StepMetrics& metrics, std::int64_t total_steps,
                          std::optional<Seconds> remaining, int columns);

// Shows the live progress of a training. The first and the last step are always shown. One thread at a time.
class TrainingProgress {
 public:
  TrainingProgress(StatusLine& line, std::int64_t total_steps) : line_(line), total_steps_(total_steps) {}
  TrainingProgress(const TrainingProgress&) = delete;
  ~TrainingProgress() { finish(); }

  void step_ended(const StepMetrics& metrics);
  // Leaves the line of the latest step visible. The destructor also calls it, so an interrupted run shows its
  // last step.
  void finish();

 private:
  std::string line_text() const;

  StatusLine& line_;
  std::int64_t total_steps_;
  StepTimeEstimator step_time_;
  std::optional<StepMetrics> latest_;  // with the last validation loss so far
  bool is_latest_shown_ = false;
};

}  // namespace optimus
