// AdaptationController: decides on rank 0 when the run should switch to another plan. It determines why steps
// are slow from the observations of all ranks and lets a policy choose among plans that suit the current
// state of the machines. After a switch it measures whether the predicted gain was reached.
//
//   AdaptationController controller(context, plan, calibration);
//   after a step:  controller.observe(observation);  // returns at once: plans are compared on another thread
//                  if (auto proposal = controller.take_proposal())  // src/switching performs it
//                  controller.plan_adopted(plan, proposal, step);
//
// Ownership: there is one controller per membership generation. The caller owns the calibration, which must
// outlive the controller. Threading: all calls come from one thread. Plans are compared (adapt/weighing.h) on
// a separate thread, which shares no mutable state with the caller. Failure: an internal error in a
// comparison is thrown by the next take_proposal() or plan_adopted(). Read next: findings_tracker.h,
// gain_verdicts.h, probe_scheduler.h, decide.h.
#pragma once

#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "adapt/adaptation_context.h"
#include "adapt/findings_tracker.h"
#include "adapt/gain_verdicts.h"
#include "adapt/phase_monitor.h"
#include "adapt/plan_history.h"
#include "adapt/probe_scheduler.h"
#include "adapt/question.h"
#include "adapt/question_schedule.h"
#include "adapt/stay_reports.h"

namespace optimus {

class AdaptationController final : public ProposalSource {
 public:
  AdaptationController(AdaptationContext context, const Plan& plan, Calibration& calibration);
  ~AdaptationController() override;
  AdaptationController(const AdaptationController&) = delete;
  AdaptationController& operator=(const AdaptationController&) = delete;

  // Must be called in step order. observe_loss() is called only for steps whose loss this rank knows.
  void observe(const Observation& observation);
  void observe_loss(double loss) { phase_.observe_loss(loss); }
  const std::vector<Finding>& findings() const { return findings_.findings(); }

  // Returns whether all ranks should run a probe now (switching/probe.h). Returns true once for each request.
  // The caller must then run the probe and call probe_completed().
  bool take_probe_request() { return probes_.take_request(); }
  const ProbeRequest& probe_request() const { return probes_.request(); }
  std::vector<int> node_of_ranks() const { return node_of_each_device(cluster_); }
  void probe_completed(const ProbeResult& result);

  bool is_weighing() const { return weighing_.valid() && !has_answer(); }
  // Returns each proposal once, or nullopt if there is no new proposal.
  std::optional<PlanProposal> take_proposal() override;
  // Returns the oldest decision to keep the plan that has not been reported yet. Such decisions are made when
  // no other plan is better, when no plan can mitigate a condition, and when the training phase changes.
  std::optional<StayDecision> take_stay() { return stay_reports_.take(); }

  // Called when the run has switched to this plan after `step`. `proposal` is empty if this controller did
  // not propose the plan.
  void plan_adopted(const Plan& plan, const std::optional<PlanProposal>& proposal, std::int64_t step);
  void proposal_refused();
  // Returns the status of the pending provisional proposal. Call proposal_cancelled() when the proposal is
  // rejected or the run cannot wait for it.
  ProvisionalStatus provisional_status() const override;
  void proposal_cancelled();
  // Returns the measured gain of the last proposal once, some steps after the switch. Returns nullopt before
  // that, and always if an unrelated condition has slowed the run down in the meantime.
  std::optional<double> take_measured_gain() { return verdicts_.take_verdict(history_.num_observations()); }

 private:
  void update_findings(const Observation& observation);
  void schedule_probe(bool has_ambiguous_link);
  void update_verdict();
  void report_unanswerable();
  void report_phase(const Observation& observation);
  void weigh_if_due();
  void weigh_provisional_if_due();

  void start_weighing(bool is_provisional);
  bool has_answer() const { return weighing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  Question question(bool is_provisional) const;
  void add_plans_to_return_to(Question& question) const;
  void add_calibration(Question& question) const;
  std::string question_key() const;
  std::string evidence_of(const std::vector<Finding>& findings) const;

  bool is_unexplained() const;
  bool are_steps_longer(std::size_t last_steps) const;
  std::vector<Finding> noticeable_findings(std::vector<Finding> findings, std::size_t last_steps) const;
  std::vector<Condition> conditions_since_switch() const {
    return findings_.conditions_since_switch(verdicts_.answered_conditions());
  }
  double seconds_since_switch() const;
  bool has_missed_gain() const { return verdicts_.has_missed_gain(history_.num_observations()); }

  const AdaptationContext context_;
  const Cluster cluster_;  // of context_.machines
  Calibration& calibration_;
  PlanHistory history_;
  FindingsTracker findings_;
  GainVerdicts verdicts_;
  ProbeScheduler probes_;
  QuestionSchedule schedule_;
  StayReports stay_reports_;
  PhaseMonitor phase_;
  PredictionMemory memory_;
  std::optional<PendingProposal> pending_;
  bool is_weighing_provisional_ = false;
  bool has_sought_better_plan_ = false;  // in the present training phase
  // Number of consecutive observations up to now with longer steps than usual and no finding that explains
  // them.
  int num_unexplained_ = 0;
  std::future<Answer> weighing_;
};

}  // namespace optimus
