// The loop over the steps of a run, for every kind of model: batches in, updates, metrics out. What a model and its data are like
// is in the Course; what a step does is in the engine.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>

#include "base/file.h"
#include "elastic/salvage.h"
#include "engine/engine.h"
#include "engine/module_block.h"
#include "observe/decisions.h"
#include "observe/metrics.h"
#include "observe/progress.h"
#include "observe/tensorboard.h"
#include "run/saver.h"
#include "run/train.h"
#include "settings/save_rule.h"
#include "settings/settings.h"
#include "switching/plan_switches.h"

namespace optimus {

class Watching;

class Profiler;

// The files of a run.
struct RunFolder {
  Path path;
  MetricsFile metrics;
  TensorBoardFile board;
  MetricsFile decisions;  // as decision_line() writes them
};
// Throws UserError when the folder holds a run already, unless that is resumed, or cannot be written. A resumed run keeps its
// metrics up to last_step. table may be null.
RunFolder open_run_folder(const TrainSettings& settings, const TrainOptions& options,
                          const OptionTable* table, FileSystem& files, std::int64_t last_step);
// The two halves of that: who decides writes settings and plan, who has the loss keeps the records.
void begin_run_folder(const TrainSettings& settings, const TrainOptions& options, const OptionTable* table,
                      FileSystem& files);
RunFolder open_records(const Path& run, FileSystem& files, std::int64_t last_step,
                       const std::function<void()>& check = {});

// What keeps one rank's part in a plan: made anew with every plan.
struct PartKeepers {
  std::unique_ptr<Saver> saver{};          // none: the rank has no part
  std::unique_ptr<Saver> memory{};         // none: nothing is saved there (memory_level.h)
  std::unique_ptr<Profiler> profiler{};    // none: no step is looked at closer
  std::unique_ptr<LentModules> modules{};  // of a model of modules
};

struct Course {
  // On another thread, while the step before is computed. Steps count from 0.
  std::function<Batch(const Plan& plan, std::int64_t step, std::int64_t first_sample)> read;
  std::function<std::optional<double>(const PlanPart& part)> validate;
  std::function<PartKeepers(const PlanPart& part)> keep;
};

// The other ranks. All ranks of the run have the same loop, also those without a part in the plan.
struct Company {
  Comm& comm;
  StepAgreement& agreement;
  std::function<bool()> is_asked;                              // whether this rank is asked to end
  PlanSwitches* switches = nullptr;                            // none: the plan stays
  std::int64_t epoch = 0;                                      // of the plan at the begin
  std::function<bool()> wants_to_meet = [] { return false; };  // because somebody comes, or this rank leaves
  std::function<bool()> leaves = [] { return false; };
  Watching* watching = nullptr;  // none: nobody looks how it goes
  StepBeacon* beacon = nullptr;  // where it shows how far it is
};

// Between two steps, at all ranks alike: they are to regroup (regroup.h).
struct RegroupAsked {
  int drained = -1;  // a rank that leaves because somebody asked for it
  bool leaves =
      false;  // this rank has told the others that it goes; who has not stays for now, so that somebody does
};

// The lines before the first step: plan, precision, device, run folder.
void say_how_it_runs(const TrainSettings& settings, at::Device device, int threads, StatusLine& line);

class Training {
 public:
  // The part goes on from `start`: restored, or as new. All must outlive this.
  Training(const TrainOptions& options, const TrainSettings& settings, Course course, PlanPart& part,
           const TrainingState& start, const Company& company, EventSink& events, StatusLine& line);
  ~Training();

  // All steps, and a checkpoint of the last. Throws what events throw when the user wants to end, after a checkpoint, and RegroupAsked;
  // it may then be called again. folder is null at ranks that keep no records. switches: null, the plan stays.
  // watching: null, nobody looks how it goes.
  TrainResult run(RunFolder* folder, PlanSwitches* switches, Watching* watching = nullptr);

  // When run() has failed (salvage.h): what this rank still has. Completes a step whose gate it has passed.
  Standing stand();
  // Completes the step at whose gate it stands, with the sums of a rank that has passed it.
  void follow(const std::vector<double>& gate);
  // Before the part changes: ends saves of it that are under way, together with the others.
  void finish_saves();
  // The same without the others, when they are lost; nothing refers to the part any more.
  void drop_part_keepers();
  // The part is of another plan, and stands behind this state.
  void go_on_from(const TrainingState& state, std::int64_t epoch);
  std::int64_t epoch() const { return epoch_; }
  // Of the last step that was seen.
  Seconds step_seconds() const { return last_ ? last_->seconds : Seconds(0); }
  // Of the last complete step.
  const TrainingState& done() const { return done_; }
  std::string last_line() const { return last_ ? metrics_line(*last_) : ""; }
  Saver* saver() { return keepers_.saver.get(); }
  void end_writing();

 private:
  void let_go_of_part();
  double flops_per_token() const;
  // The engine goes on from there, and so do phases.
  void take_state(const TrainingState& state);
  void decide_phase();
  void know_phase(std::int64_t begin);
  std::string evidence_of(const SwitchEnd& end) const;
  StepMetrics one_step();
  StepMetrics step_of_others();
  void tell_first(const StepMetrics& metrics);
  StepMetrics metrics_of(const StepReport& report) const;
  void record(const StepMetrics& metrics, RunFolder* folder);
  void end_of_step(RunFolder* folder);
  std::string take_new_part(const SwitchEnd& end, RunFolder* folder);
  void tell_decisions(RunFolder& folder);
  void tell_stay(RunFolder& folder, const StayDecision& stay);
  void save_if_due();
  void save_to_memory();
  // Writes what the run ends with. Throws UserError when that cannot be done.
  Path save_last();
  TrainingState state() const;
  // A rank of the plan tells rank 0, which keeps the records, how the step went, when that has no part.
  bool is_told_by_others() const;
  int teller() const { return part_.plan.pipelines[0].stages[0].devices[0]; }

  const TrainOptions& options_;
  const TrainSettings& settings_;
  const Course course_;
  PlanPart& part_;
  Company company_;
  EventSink& events_;
  TrainingProgress progress_;
  std::optional<double> peak_flops_;
  const SaveRule save_rule_;
  StatusLine& line_;
  PartKeepers keepers_;
  std::int64_t step_, next_sample_;         // done, or under way; not yet seen
  std::int64_t epoch_;                      // of the plan
  std::vector<std::int64_t> phase_begins_;  // as in TrainingState
  TrainingState done_;
  std::optional<StepMetrics> last_;  // of done_
  std::chrono::steady_clock::time_point step_began_;
  std::chrono::steady_clock::time_point switch_began_;
  bool has_said_to_leave_ = false;  // after the step before
  double wished_gain_ = 0;          // predicted, of the last plan that the run wished for
  double rate_ = 0;                 // of the step under way
  std::chrono::steady_clock::time_point last_save_;
  std::optional<SaveMetrics> saved_;  // for the next line of metrics
  std::future<Batch> next_;
};

}  // namespace optimus
