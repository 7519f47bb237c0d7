// Implements plan_history.h.
#include "adapt/plan_history.h"

#include <algorithm>

namespace optimus {

void PlanHistory::adopt(const Plan& plan, bool is_proposed, std::int64_t first_step, double now) {
  const bool is_known = is_earlier_plan(plan);
  previous_plan_ = is_proposed && !is_known ? std::optional(plan_) : std::nullopt;
  plan_before_proposal_ = is_proposed ? std::optional(plan_) : std::nullopt;
  if (is_proposed && !original_plan_) original_plan_ = plan_;
  // If the user requested the plan, the run does not return to an earlier one.
  if (!is_proposed || original_plan_ == plan) original_plan_.reset();
  plan_ = plan, first_step_ = first_step, switched_at_ = now;
  recent_step_times_.clear(), last_conditions_.clear(), num_observations_ = 0;
}

void PlanHistory::observe(const Observation& observation) {
  ++num_observations_, last_step_ = observation.step;
  if (num_observations_ > kSettlingObservations || !plan_before_proposal_)
    recent_step_times_.push_back(observation.seconds);
  if (recent_step_times_.size() > kRecentSteps) recent_step_times_.pop_front();
}

void PlanHistory::record_step_time(const std::vector<Condition>& conditions) {
  last_conditions_.emplace_back(condition_key(conditions, plan_, cluster_), step_seconds());
  if (std::ssize(last_conditions_) <= kObservationsToDetect) return;
  const std::pair<std::string, double> oldest = last_conditions_.front();
  const bool have_lasted = std::all_of(last_conditions_.begin(), last_conditions_.end(),
                                       [&](const auto& entry) { return entry.first == oldest.first; });
  last_conditions_.pop_front();
  if (!have_lasted) return;
  const MeasurementKey key = measurement_key(plan_, oldest.first, cluster_);
  step_times_[key] = oldest.second;
  if (!oldest.first.empty()) return;
  double& min_seconds = min_step_times_.try_emplace(key, oldest.second).first->second;
  min_seconds = std::min(min_seconds, oldest.second);
}

void PlanHistory::record(const Plan& plan, const std::vector<Condition>& conditions, double seconds) {
  const std::string key = condition_key(conditions, plan, cluster_);
  if (!key.empty()) step_times_[measurement_key(plan, key, cluster_)] = seconds;
}

void PlanHistory::record_if_unknown(const std::vector<Condition>& conditions, double seconds) {
  const std::string key = condition_key(conditions, plan_, cluster_);
  step_times_.try_emplace(measurement_key(plan_, key, cluster_), seconds);
}

void PlanHistory::forget_step_times() {
  step_times_.clear(), min_step_times_.clear(), last_conditions_.clear();
}

double PlanHistory::step_seconds(std::size_t last_steps) const {
  const auto count = static_cast<std::ptrdiff_t>(std::min(last_steps, recent_step_times_.size()));
  std::vector<double> sorted(recent_step_times_.end() - count, recent_step_times_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

std::optional<double> PlanHistory::ratio_to_usual(std::size_t last_steps) const {
  const auto least_step_time = min_step_times_.find(measurement_key(plan_, "", cluster_));
  if (least_step_time == min_step_times_.end()) return std::nullopt;
  return step_seconds(last_steps) / least_step_time->second;
}

bool PlanHistory::are_steps_longer(std::size_t last_steps) const {
  return ratio_to_usual(last_steps).value_or(kNoticeableFactor) >= kNoticeableFactor;
}

bool PlanHistory::has_lasting_conditions(const std::vector<Condition>& conditions) const {
  const std::string key = condition_key(conditions, plan_, cluster_);
  return !last_conditions_.empty() && std::all_of(last_conditions_.begin(), last_conditions_.end(),
                                                  [&](const auto& one) { return one.first == key; });
}

}  // namespace optimus
