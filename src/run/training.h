// The loop over the steps of a run, for every kind of model. It reads batches, runs updates and writes
// metrics. TrainingHooks supply the batches and the validation for a kind of model, and the engine implements
// a step.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>

#include "elastic/emergency_checkpoint.h"
#include "engine/engine.h"
#include "engine/module_block.h"
#include "observe/progress.h"
#include "run/rank_context.h"
#include "run/run_folder.h"
#include "run/saver.h"
#include "rundir/train_result.h"
#include "settings/run_spec.h"
#include "settings/save_rule.h"
#include "switching/plan_switch_controller.h"

namespace optimus {

class AdaptationController;
class Profiler;
class RankMonitor;

// The objects that belong to one rank's part of a plan. They are created again for every plan.
struct PartServices {
  std::unique_ptr<Saver> saver{};            // null if the plan does not use the rank
  std::unique_ptr<Saver> memory{};           // null if there are no in-memory checkpoints (memory_level.h)
  std::unique_ptr<Profiler> profiler{};      // null if no steps are profiled
  std::unique_ptr<ModuleBinding> modules{};  // null unless the model consists of torch modules
};

struct TrainingHooks {
  // Called on another thread while the previous step is computed. Steps are numbered from 0.
  std::function<Batch(const Plan& plan, std::int64_t step, std::int64_t first_sample)> read;
  std::function<std::optional<double>(const PlanPart& part)> validate;
  std::function<PartServices(const PlanPart& part)> make_services;
};

// How a sequence of steps ended.
struct StepsEnd {
  enum class Kind { finished, stopped, membership_change };
  Kind kind = Kind::finished;
  TrainResult result{};  // set if finished or stopped
  // Set for a membership change (membership_change.h):
  int drained = -1;  // the rank that leaves because a user requested it; -1 if there is none
  // Whether this rank has announced that it leaves. The other ranks stay for now, so that at least one rank
  // remains.
  bool leaves = false;
};

// Prints the lines before the first step: plan, precision, device, run folder.
void print_plan_summary(const TrainSettings& settings, at::Device device, int threads, StatusLine& line);

// One rank's training. All ranks of the run execute the same loop, including ranks that the plan does not
// use.
class Training final : public SwitchListener {
 public:
  // Starts from the state `start`, which is restored or new, in plan epoch `epoch`. All arguments must
  // outlive this object.
  Training(const RunSpec& spec, TrainingHooks hooks, const RankContext& rank, StepAgreement& agreement,
           PlanPart& part, const TrainingState& start, std::int64_t epoch);
  ~Training() override;

  // Objects that accompany a sequence of steps. Each may be null.
  struct Companions {
    RunFolder* records = nullptr;              // null except on the rank that keeps the records
    PlanSwitchController* switches = nullptr;  // null if the plan never changes
    RankMonitor* monitor = nullptr;            // null if steps are not measured
  };
  // Runs steps until all are done or all ranks agree to end. A finished or stopped training has saved a
  // checkpoint of its last step. May be called again after a membership change. Throws PeersLost.
  StepsEnd run(const Companions& companions);

  // SwitchListener. Called when the plan changes between two steps.
  void before_switch() override;
  std::string switch_ended(const SwitchOutcome& outcome) override;

  // Called when run() has failed (emergency_checkpoint.h). Returns the state that this rank still has. If the
  // rank has passed the gate of a step, completes that step first.
  SurvivorState survivor_state();
  // Completes the step at whose gate this rank is waiting. `gate` contains the gate sums of a rank that has
  // passed it.
  void finish_step(const std::vector<double>& gate);
  // Called before the part changes. Finishes saves in progress together with the other ranks.
  void finish_saves();
  // Replaces finish_saves() if other ranks were lost and cannot cooperate. Afterwards, no object refers to
  // the part.
  void drop_part_services();
  // Called when the part belongs to another plan. Continues from `state` in plan epoch `epoch`.
  void resume_from(const TrainingState& state, std::int64_t epoch);
  std::int64_t epoch() const { return epoch_; }
  // Duration of the last recorded step.
  Seconds step_seconds() const { return last_metrics_ ? last_metrics_->seconds : Seconds(0); }
  // The state after the last completed step.
  const TrainingState& completed_state() const { return completed_state_; }
  std::string last_metrics_line() const { return last_metrics_ ? metrics_line(*last_metrics_) : ""; }
  Saver* saver() { return services_.saver.get(); }
  void end_writing();

 private:
  // The action after a step. It is the same on all ranks.
  enum class AfterStep { proceed, stop, change_membership };

  StepMetrics run_step();
  StepMetrics train_step_of_part();
  StepMetrics step_without_part();
  AfterStep end_of_step();
  StepVote vote(bool is_interrupted);
  double flops_per_token() const;
  // Sets the engine and the phases to this state.
  void adopt_state(const TrainingState& state);
  void decide_phase();
  void set_phase_begin(std::int64_t begin);
  void adopt_new_plan();
  Decision decision_of(const SwitchOutcome& outcome) const;
  std::string evidence_text(const SwitchOutcome& outcome) const;
  StepMetrics metrics_of(const StepReport& report) const;
  void report_step(const StepMetrics& metrics);
  void report_decisions();
  void save_if_due();
  void save_to_memory();
  // Writes the final checkpoint and returns its folder. Throws RuntimeFailure if that fails.
  Path save_last();
  TrainingState state() const;
  AdaptationController* controller() const;
  // Whether the plan does not use rank 0, which writes the records. In that case, a rank that the plan uses
  // sends the metrics of each step to rank 0.
  bool is_rank_0_without_part() const;
  int reporting_rank() const { return part_.plan.pipelines[0].stages[0].devices[0]; }

  const RunSpec& spec_;
  const TrainingHooks hooks_;
  const RankContext& rank_;
  StepAgreement& agreement_;
  PlanPart& part_;
  Companions companions_;
  TrainingProgress progress_;
  std::optional<double> peak_flops_;
  const SaveRule save_rule_;
  PartServices services_;
  std::int64_t step_, next_sample_;         // the current step; the first sample that has not been read
  std::int64_t epoch_;                      // plan epoch
  std::vector<std::int64_t> phase_begins_;  // first step of each phase, as in TrainingState
  TrainingState completed_state_;
  std::optional<StepMetrics> last_metrics_;  // the metrics of completed_state_
  std::chrono::steady_clock::time_point step_begin_time_;
  std::chrono::steady_clock::time_point switch_begin_time_;
  int drained_ = -1;                  // as in StepsEnd
  bool has_announced_leave_ = false;  // announced after the previous step
  double proposed_gain_ = 0;          // predicted gain of the last plan that the run proposed
  double learning_rate_ = 0;          // learning rate of the current step
  std::chrono::steady_clock::time_point last_save_;
  std::optional<SaveMetrics> finished_save_;  // for the next metrics line
  std::future<Batch> next_batch_;
};

}  // namespace optimus
