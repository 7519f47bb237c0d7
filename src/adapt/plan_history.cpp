// Implements plan_history.h.
#include "adapt/plan_history.h"

#include <algorithm>

namespace optimus {

void PlanHistory::adopt(const Plan& plan, bool is_proposed, std::int64_t first_step, double now) {
  const bool is_known = is_return(plan);
  previous_ = is_proposed && !is_known ? std::optional(plan_) : std::nullopt;
  before_proposal_ = is_proposed ? std::optional(plan_) : std::nullopt;
  if (is_proposed && !original_plan_) original_plan_ = plan_;
  // The run does not return from a plan that was requested from outside.
  if (!is_proposed || original_plan_ == plan) original_plan_.reset();
  plan_ = plan, first_step_ = first_step, switched_at_ = now;
  recent_.clear(), last_conditions_.clear(), num_observations_ = 0;
}

void PlanHistory::observe(const Observation& seen) {
  ++num_observations_, last_step_ = seen.step;
  if (num_observations_ > kSettlingObservations || !before_proposal_) recent_.push_back(seen.seconds);
  if (recent_.size() > kRecentSteps) recent_.pop_front();
}

void PlanHistory::record_step_time(const std::vector<Condition>& conditions) {
  last_conditions_.emplace_back(condition_key(conditions, plan_, cluster_), step_seconds());
  if (std::ssize(last_conditions_) <= kObservationsToDetect) return;
  const std::pair<std::string, double> oldest = last_conditions_.front();
  const bool have_lasted = std::all_of(last_conditions_.begin(), last_conditions_.end(),
                                       [&](const auto& one) { return one.first == oldest.first; });
  last_conditions_.pop_front();
  if (!have_lasted) return;
  const MeasurementKey key = measurement_key(plan_, oldest.first, cluster_);
  step_times_[key] = oldest.second;
  if (!oldest.first.empty()) return;
  double& least = least_step_times_.try_emplace(key, oldest.second).first->second;
  least = std::min(least, oldest.second);
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
  step_times_.clear(), least_step_times_.clear(), last_conditions_.clear();
}

double PlanHistory::step_seconds(std::size_t last_steps) const {
  const auto number = static_cast<std::ptrdiff_t>(std::min(last_steps, recent_.size()));
  std::vector<double> sorted(recent_.end() - number, recent_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

std::optional<double> PlanHistory::times_usual(std::size_t last_steps) const {
  const auto least_step_time = least_step_times_.find(measurement_key(plan_, "", cluster_));
  if (least_step_time == least_step_times_.end()) return std::nullopt;
  return step_seconds(last_steps) / least_step_time->second;
}

bool PlanHistory::are_steps_longer(std::size_t last_steps) const {
  return times_usual(last_steps).value_or(kNoticeableFactor) >= kNoticeableFactor;
}

bool PlanHistory::has_lasting_conditions(const std::vector<Condition>& conditions) const {
  const std::string key = condition_key(conditions, plan_, cluster_);
  return !last_conditions_.empty() && std::all_of(last_conditions_.begin(), last_conditions_.end(),
                                                  [&](const auto& one) { return one.first == key; });
}

}  // namespace optimus
