// PlanHistory: the plans that a run has used, and the step times measured on each of them under given
// conditions.
//
// PlanHistory makes no decisions. Pure; one thread at a time. The cluster must outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "adapt/observation.h"
#include "adapt/plan_conditions.h"

namespace optimus {

constexpr std::size_t kRecentSteps = 10;  // their median is the plan's step time
// The first observations after a plan change are not representative.
constexpr int kSettlingObservations = 3;
// Medians of ten steps vary by one or two percent, so smaller differences are ignored.
constexpr double kNoticeableFactor = 1.03;

class PlanHistory {
 public:
  PlanHistory(const Cluster& cluster, const Plan& plan) : cluster_(cluster), plan_(plan) {}

  // Called when the run has switched to `plan`, starting at `first_step`. `is_proposed` is true if the
  // controller proposed the plan.
  void adopt(const Plan& plan, bool is_proposed, std::int64_t first_step, double now);
  // Whether the observation belongs to the current plan.
  bool is_current(const Observation& observation) const {
    return observation.step >= first_step_ && observation.num_ranks > 0;
  }
  void observe(const Observation& observation);
  // Records the current step time for these conditions if they have not changed for kObservationsToDetect
  // observations. Otherwise the step time may belong to other conditions, because a condition is found only
  // some steps after it begins. Call after observe() if has_step_time() is true.
  void record_step_time(const std::vector<Condition>& conditions);
  // Records a step time of `plan` under these conditions. Has no effect if there are no conditions, because
  // only record_step_time() sets the usual step time of a plan.
  void record(const Plan& plan, const std::vector<Condition>& conditions, double seconds);
  void record_if_unknown(const std::vector<Condition>& conditions, double seconds);
  void forget_step_times();

  const Plan& plan() const { return plan_; }
  const std::optional<Plan>& original_plan() const { return original_plan_; }
  const std::optional<Plan>& previous_plan() const { return previous_plan_; }
  const std::optional<Plan>& plan_before_proposal() const { return plan_before_proposal_; }
  bool is_earlier_plan(const Plan& plan) const { return original_plan_ == plan || previous_plan_ == plan; }
  std::int64_t first_step() const { return first_step_; }
  std::int64_t last_step() const { return last_step_; }
  int num_observations() const { return num_observations_; }
  double seconds_since_switch(double now) const { return now - switched_at_; }

  std::size_t num_recent() const { return recent_step_times_.size(); }
  bool has_step_time() const { return recent_step_times_.size() == kRecentSteps; }
  // The median time of the last steps. At least one step must have been observed.
  double step_seconds(std::size_t last_steps = kRecentSteps) const;
  // The current step time divided by the plan's usual step time. Returns nullopt if the usual step time is
  // unknown.
  std::optional<double> ratio_to_usual(std::size_t last_steps) const;
  // Whether steps are noticeably longer than usual; true if the usual step time is unknown.
  bool are_steps_longer(std::size_t last_steps) const;
  bool has_lasting_conditions(const std::vector<Condition>& conditions) const;
  const std::map<MeasurementKey, double>& step_times() const { return step_times_; }

 private:
  const Cluster& cluster_;
  Plan plan_;
  std::optional<Plan> original_plan_;  // the plan before the first proposal that was adopted
  // The plan before the current one. Empty if the current plan is a return to an earlier plan.
  std::optional<Plan> previous_plan_;
  std::optional<Plan> plan_before_proposal_;     // the plan before the current one, if that was proposed
  std::int64_t first_step_ = 0, last_step_ = 0;  // of the current plan; the last one observed
  int num_observations_ = 0;                     // of the current plan
  double switched_at_ = -1e9;                    // time of the controller's clock
  std::deque<double> recent_step_times_;         // step times of the current plan
  std::deque<std::pair<std::string, double>> last_conditions_;  // condition key and step time
  std::map<MeasurementKey, double> step_times_;
  // The shortest step times without findings. A value in step_times_ may include the effect of a condition
  // that was found late.
  std::map<MeasurementKey, double> min_step_times_;
};

}  // namespace optimus
