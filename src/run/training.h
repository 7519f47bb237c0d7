// The loop over the steps of a run, for every kind of model: batches in, updates, metrics out. What a model and its data are like
// is in the Course; what a step does is in the engine.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <optional>

#include "base/file.h"
#include "engine/engine.h"
#include "observe/metrics.h"
#include "observe/progress.h"
#include "observe/tensorboard.h"
#include "run/salvage.h"
#include "run/save_rule.h"
#include "run/saver.h"
#include "run/settings.h"
#include "run/train.h"

namespace optimus {

class Profiler;

// The files of a run.
struct RunFolder {
  MetricsFile metrics;
  TensorBoardFile board;
};
// Throws UserError when the folder holds a run already, unless that is resumed, or cannot be written. A resumed run keeps its
// metrics up to last_step. table may be null.
RunFolder open_run_folder(const TrainSettings& settings, const TrainOptions& options,
                          const OptionTable* table, FileSystem& files, std::int64_t last_step);
// The two halves of that: who decides writes settings and plan, who has the loss keeps the records.
void begin_run_folder(const TrainSettings& settings, const TrainOptions& options, const OptionTable* table,
                      FileSystem& files);
RunFolder open_records(const Path& run, FileSystem& files, std::int64_t last_step);

// As hardware profiles call it: cpu, h200; a maker's own name where we know no other.
std::string type_name(at::Device device);
at::Device choose_device(const std::string& name);  // empty: CUDA where there is one

struct Course {
  // On another thread, while the step before is computed. Steps count from 0.
  std::function<Batch(std::int64_t step, std::int64_t first_sample)> read;
  std::function<std::optional<double>(Engine& engine)> validate;
  // By all ranks after every step but the last; throws Interrupted on all of them after the same step. None: events tell.
  std::function<void()> step_ended{};
};

// The lines before the first step: plan, precision, device, run folder.
void say_how_it_runs(const TrainSettings& settings, at::Device device, int threads, StatusLine& line);

class Training {
 public:
  // The engine goes on from `start`: restored, or as new.
  Training(const TrainOptions& options, const TrainSettings& settings, Course course, Engine& engine,
           const Parameters& parameters, const TrainingState& start, EventSink& events, StatusLine& line);

  // All steps, and a checkpoint of the last. Throws what events throw when the user wants to end, after a checkpoint. folder is
  // null at ranks that keep no records, profiler where no step is looked at closer, memory where nothing is saved there
  // (memory_level.h).
  TrainResult run(RunFolder* folder, Saver& saver, Profiler* profiler = nullptr, Saver* memory = nullptr);

  // When run() has failed (salvage.h): what this rank still has. Completes a step whose gate it has passed.
  Standing stand();
  // Completes the step at whose gate it stands, with the sums of a rank that has passed it.
  void follow(const std::vector<double>& gate);
  // Of the last complete step.
  const TrainingState& done() const { return done_; }
  std::string last_line() const { return last_ ? metrics_line(*last_) : ""; }

 private:
  StepMetrics one_step();
  StepMetrics metrics_of(const StepReport& report) const;
  void record(const StepMetrics& metrics, RunFolder* folder);
  void save_if_due(Saver& saver);
  void save_to_memory(Saver& memory);
  // Writes what the run ends with. Throws UserError when that cannot be done.
  Path save_last(Saver& saver);
  TrainingState state() const;

  const TrainOptions& options_;
  const TrainSettings& settings_;
  const Course course_;
  Engine& engine_;
  const Parameters& parameters_;
  EventSink& events_;
  TrainingProgress progress_;
  const double flops_per_token_;
  const std::optional<double> peak_flops_;
  const SaveRule save_rule_;
  StatusLine& line_;
  Profiler* profiler_ = nullptr;
  std::int64_t step_, next_sample_;  // done, or under way; not yet seen
  TrainingState done_;
  std::optional<StepMetrics> last_;  // of done_
  std::chrono::steady_clock::time_point step_began_;
  double rate_ = 0;  // of the step under way
  std::chrono::steady_clock::time_point last_save_;
  std::optional<SaveMetrics> saved_;  // for the next line of metrics
  std::future<Batch> next_;
};

}  // namespace optimus
