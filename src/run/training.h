// The loop over the steps of a run, for every kind of model: reads batches, runs updates, writes metrics.
// TrainingHooks supplies the batches and the validation of a kind of model; the engine implements a step.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>

#include "base/event.h"
#include "base/file.h"
#include "elastic/emergency_checkpoint.h"
#include "engine/engine.h"
#include "engine/module_block.h"
#include "observe/decisions.h"
#include "observe/metrics.h"
#include "observe/progress.h"
#include "observe/status_line.h"
#include "observe/tensorboard.h"
#include "run/saver.h"
#include "run/train_result.h"
#include "settings/save_rule.h"
#include "settings/settings.h"
#include "switching/plan_switch_controller.h"

namespace optimus {

class RankMonitor;

class Profiler;

// The record files of a run.
struct RunFolder {
  Path path;
  MetricsFile metrics;
  TensorBoardFile board;
  MetricsFile decisions;  // in the format of decision_line()
};
// Throws UserError if the folder already contains a run that is not being resumed, or if it cannot be
// written. A resumed run keeps its metrics up to last_step. `table` may be null.
RunFolder open_run_folder(const TrainSettings& settings, const TrainOptions& options,
                          const OptionTable* table, FileSystem& files, std::int64_t last_step);
// The two halves of open_run_folder(): the process that resolves the settings writes settings and plan
// (begin_run_folder()), and rank 0 opens the records.
void begin_run_folder(const TrainSettings& settings, const TrainOptions& options, const OptionTable* table,
                      FileSystem& files);
RunFolder open_records(const Path& run, FileSystem& files, std::int64_t last_step,
                       const std::function<void()>& check = {});

// The objects that belong to one rank's part of a plan; created again for every plan.
struct PartServices {
  std::unique_ptr<Saver> saver{};            // null if the rank has no part
  std::unique_ptr<Saver> memory{};           // null if there are no in-memory checkpoints (memory_level.h)
  std::unique_ptr<Profiler> profiler{};      // null if no steps are profiled
  std::unique_ptr<ModuleBinding> modules{};  // for a model of modules
};

struct TrainingHooks {
  // Called on another thread, while the previous step is computed. Steps count from 0.
  std::function<Batch(const Plan& plan, std::int64_t step, std::int64_t first_sample)> read;
  std::function<std::optional<double>(const PlanPart& part)> validate;
  std::function<PartServices(const PlanPart& part)> keep;
};

// What the training loop needs to cooperate with the other ranks. All ranks of the run execute the same
// loop, including those without a part in the plan.
struct RankContext {
  Comm& comm;
  StepAgreement& agreement;
  std::function<bool()> is_end_requested;    // whether this rank is asked to end
  PlanSwitchController* switches = nullptr;  // null if the plan never changes
  std::int64_t epoch = 0;                    // plan epoch at the start
  // Whether a membership change is requested because a worker joins or this rank leaves.
  std::function<bool()> wants_membership_change = [] { return false; };
  std::function<bool()> leaves = [] { return false; };
  RankMonitor* monitor = nullptr;           // null if steps are not measured
  StepHeartbeat* step_heartbeat = nullptr;  // where this rank reports its progress
};

// Thrown between two steps, after the same step on all ranks, when the membership is about to change
// (membership_change.h).
struct MembershipChangeRequested {
  int drained = -1;  // the rank that leaves because a user requested it; -1 if none
  // This rank has announced that it leaves. Ranks that have not announced it stay for now, so that at least
  // one rank remains.
  bool leaves = false;
};

// Prints the lines before the first step: plan, precision, device, run folder.
void print_plan_summary(const TrainSettings& settings, at::Device device, int threads, StatusLine& line);

class Training {
 public:
  // The training starts from `start`, either restored or new. All arguments must outlive this object.
  Training(const TrainOptions& options, const TrainSettings& settings, TrainingHooks hooks, PlanPart& part,
           const TrainingState& start, const RankContext& context, EventSink& events, StatusLine& line);
  ~Training();

  // Runs all steps and saves a checkpoint after the last one. If the user ends the run, saves a checkpoint
  // and rethrows the exception of `events`. Throws MembershipChangeRequested, after which it may be called
  // again. `folder` is null on ranks that keep no records, `switches` is null if the plan never changes,
  // and `monitor` is null if steps are not measured.
  TrainResult run(RunFolder* folder, PlanSwitchController* switches, RankMonitor* monitor = nullptr);

  // Called when run() has failed (emergency_checkpoint.h): the state that this rank still has. Completes a
  // step whose gate it has passed.
  SurvivorState survivor_state();
  // Completes the step at whose gate this rank is waiting, with the gate sums of a rank that has passed it.
  void follow(const std::vector<double>& gate);
  // Called before the part changes: ends its saves in progress, together with the other ranks.
  void finish_saves();
  // The same if other ranks are lost, without their cooperation; afterwards nothing refers to the part.
  void drop_part_services();
  // Called when the part belongs to another plan: continues from `state` in plan epoch `epoch`.
  void resume_from(const TrainingState& state, std::int64_t epoch);
  std::int64_t epoch() const { return epoch_; }
  // Duration of the last recorded step.
  Seconds step_seconds() const { return last_ ? last_->seconds : Seconds(0); }
  // The state after the last complete step.
  const TrainingState& done() const { return done_; }
  std::string last_line() const { return last_ ? metrics_line(*last_) : ""; }
  Saver* saver() { return services_.saver.get(); }
  void end_writing();

 private:
  void release_part();
  double flops_per_token() const;
  // Sets the engine and the phases to this state.
  void adopt_state(const TrainingState& state);
  void decide_phase();
  void set_phase_begin(std::int64_t begin);
  std::string evidence_text(const SwitchOutcome& end) const;
  StepMetrics train_step_of_part();
  StepMetrics step_without_part();
  void send_metrics_to_rank_0(const StepMetrics& metrics);
  StepMetrics metrics_of(const StepReport& report) const;
  void record(const StepMetrics& metrics, RunFolder* folder);
  void end_of_step(RunFolder* folder);
  std::string adopt_new_part(const SwitchOutcome& end, RunFolder* folder);
  void record_decisions(RunFolder& folder);
  void record_stay(RunFolder& folder, const StayDecision& stay);
  void save_if_due();
  void save_to_memory();
  // Writes the final checkpoint. Throws UserError if that fails.
  Path save_last();
  TrainingState state() const;
  // Whether rank 0, which writes the records, has no part in the plan. A rank of the plan then sends it the
  // metrics of each step.
  bool is_rank_0_without_part() const;
  int reporting_rank() const { return part_.plan.pipelines[0].stages[0].devices[0]; }

  const TrainOptions& options_;
  const TrainSettings& settings_;
  const TrainingHooks hooks_;
  PlanPart& part_;
  RankContext context_;
  EventSink& events_;
  TrainingProgress progress_;
  std::optional<double> peak_flops_;
  const SaveRule save_rule_;
  StatusLine& line_;
  PartServices services_;
  std::int64_t step_, next_sample_;         // the current step; the first sample that was not read yet
  std::int64_t epoch_;                      // plan epoch
  std::vector<std::int64_t> phase_begins_;  // first step of each phase, as in TrainingState
  TrainingState done_;
  std::optional<StepMetrics> last_;  // the metrics of done_
  std::chrono::steady_clock::time_point step_began_;
  std::chrono::steady_clock::time_point switch_began_;
  bool has_announced_leave_ = false;  // this rank announced after the previous step that it leaves
  double proposed_gain_ = 0;          // predicted gain of the last plan that the run proposed
  double rate_ = 0;                   // learning rate of the current step
  std::chrono::steady_clock::time_point last_save_;
  std::optional<SaveMetrics> saved_;  // for the next metrics line
  std::future<Batch> next_;
};

}  // namespace optimus
