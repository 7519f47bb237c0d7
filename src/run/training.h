// The loop over the steps of a run, for every kind of model: batches in, updates, metrics out. What a model and its data are like
// is in the Course; what a step does is in the engine.
#pragma once

#include <functional>
#include <future>
#include <optional>

#include "base/file.h"
#include "engine/engine.h"
#include "observe/metrics.h"
#include "observe/progress.h"
#include "observe/tensorboard.h"
#include "run/settings.h"
#include "run/train.h"

namespace optimus {

// The files of a run.
struct RunFolder {
  MetricsFile metrics;
  TensorBoardFile board;
};
// Throws UserError when the folder holds a run already or cannot be written. table may be null.
RunFolder create_run_folder(const TrainSettings& settings, const TrainOptions& options,
                            const OptionTable* table, FileSystem& files);

at::Device choose_device(const std::string& name);  // empty: CUDA where there is one

struct Course {
  std::function<Batch(std::int64_t step)> read;  // on another thread, while the step before is computed
  std::function<std::optional<double>(Engine& engine)> validate;
};

// The lines before the first step: plan, precision, device, run folder.
void say_how_it_runs(const TrainSettings& settings, at::Device device, int threads, StatusLine& line);

class Training {
 public:
  Training(const TrainOptions& options, const TrainSettings& settings, Course course, Engine& engine,
           const Parameters& parameters, EventSink& events, StatusLine& line);

  // All steps. Throws what events throw when the user wants to end.
  TrainResult run(RunFolder folder);

 private:
  StepMetrics one_step(std::int64_t step);
  void record(const StepMetrics& metrics, RunFolder& folder);

  const TrainOptions& options_;
  const TrainSettings& settings_;
  const Course course_;
  Engine& engine_;
  const Parameters& parameters_;
  EventSink& events_;
  TrainingProgress progress_;
  const double flops_per_token_;
  const std::optional<double> peak_flops_;
  std::future<Batch> next_;
};

}  // namespace optimus
