// Implements recorded_trial.h.
#include "report/recorded_trial.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "adapt/finding_text.h"
#include "base/error.h"

namespace optimus {
namespace {

// The defaults of simulated runs, used if the run has no data for a value.
constexpr double kDefaultPredictionError = 0.05, kDefaultDetectionSteps = 10, kDefaultPause = 0.1;

double median_of(std::vector<double> values, double fallback) {
  if (values.empty()) return fallback;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

bool is_automatic(const Decision& decision) {
  return decision.kind == "switch" && decision.predicted_gain.has_value();
}
// Whether the decision changed the set of ranks, so that earlier step times are no longer valid.
bool changes_membership(const Decision& decision) {
  return decision.kind == "recover" || decision.kind == "join" || decision.kind == "drain";
}

// Decisions of version 0.2 and earlier record their findings only as text.
std::vector<RecordedFinding> findings_of(const Decision& decision) {
  return decision.findings.empty() ? parse_findings(decision.evidence) : decision.findings;
}

// A condition that lasts from finding.begin_step until step `end`.
struct ConditionSpan {
  RecordedFinding finding;
  std::int64_t end = 0;
};

class Recorder {
 public:
  using NameOf = std::function<std::string(const std::string& hash)>;
  Recorder(const std::vector<StepMetrics>& steps, const std::vector<Decision>& decisions, const NameOf& name)
      : steps_(steps), decisions_(decisions), name_(name), last_step_(steps.back().step) {}

  RecordedTrial run() {
    compute_step_ends();
    collect_conditions();
    collect_epochs();
    for (auto it = segment_starts_.begin(); std::next(it) != segment_starts_.end(); ++it)
      add_segment(*it, *std::next(it));
    finish();
    return std::move(result_);
  }

 private:
  // Computes when each step ended. The pause of a plan change is added to the step before it.
  void compute_step_ends() {
    std::map<std::int64_t, double> pauses;
    for (const Decision& decision : decisions_) pauses[decision.step] += decision.pause.value;
    double elapsed = 0;
    for (const StepMetrics& step : steps_) {
      elapsed += step.seconds.value;
      if (const auto pause = pauses.find(step.step); pause != pauses.end()) elapsed += pause->second;
      step_ends_[step.step] = elapsed;
    }
    result_.seconds = elapsed, result_.num_steps = std::ssize(steps_);
  }

  double seconds_before_step(std::int64_t step) const {
    const auto it = step_ends_.lower_bound(step);
    return it == step_ends_.begin() ? 0 : std::prev(it)->second;
  }

  // A condition lasts until a decision no longer mentions it, or until the run ends.
  void collect_conditions() {
    std::map<std::pair<std::string, std::vector<int>>, std::size_t> open_conditions;
    for (const Decision& decision : decisions_) {
      if (!is_automatic(decision)) continue;
      ++result_.num_switches;
      std::set<std::pair<std::string, std::vector<int>>> named_conditions;
      for (const RecordedFinding& finding : findings_of(decision)) {
        const std::pair<std::string, std::vector<int>> key(finding.cause, finding.locations);
        named_conditions.insert(key);
        if (open_conditions.contains(key)) continue;
        open_conditions[key] = conditions_.size();
        conditions_.push_back({finding, last_step_ + 1});
        if (finding.begin_step <= decision.step)
          detection_delays_.push_back(static_cast<double>(decision.step - finding.begin_step));
      }
      for (auto it = open_conditions.begin(); it != open_conditions.end();) {
        if (!named_conditions.contains(it->first)) conditions_[it->second].end = decision.step + 1;
        it = named_conditions.contains(it->first) ? std::next(it) : open_conditions.erase(it);
      }
    }
    segment_starts_ = {steps_.front().step, last_step_ + 1};
    const auto add_segment_start = [&](std::int64_t step) {
      if (step > steps_.front().step && step <= last_step_) segment_starts_.insert(step);
    };
    for (const ConditionSpan& condition_span : conditions_)
      add_segment_start(condition_span.finding.begin_step), add_segment_start(condition_span.end);
    for (const Decision& decision : decisions_)
      if (changes_membership(decision)) add_segment_start(decision.step + 1);
  }

  void collect_epochs() {
    std::string plan = decisions_.empty() ? "the plan" : name_(decisions_.front().from);
    result_.trial.first_mode = mode_of(plan, Response::resume);
    std::map<std::int64_t, std::string> plans;
    for (const Decision& decision : decisions_)
      if (!decision.to.empty()) plans[decision.epoch] = name_(decision.to);
    for (const StepMetrics& step : steps_) {
      const auto it = plans.upper_bound(step.epoch);
      mode_at_.push_back(mode_of(it == plans.begin() ? plan : std::prev(it)->second, Response::replan));
    }
  }

  int mode_of(const std::string& plan, Response response) {
    for (std::size_t i = 0; i < result_.plans.size(); ++i)
      if (result_.plans[i] == plan) return static_cast<int>(i);
    result_.plans.push_back(plan);
    result_.trial.modes.push_back({.response = response});
    return static_cast<int>(result_.plans.size()) - 1;
  }

  // Median step times in this segment by mode. The first step of each plan is left out because it is not
  // representative.
  std::map<int, double> median_seconds_by_mode(std::int64_t begin, std::int64_t end) const {
    std::map<int, std::vector<double>> seconds_by_mode;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const bool is_first = i == 0 || mode_at_[i - 1] != mode_at_[i];
      if (steps_[i].step >= begin && steps_[i].step < end && !is_first)
        seconds_by_mode[mode_at_[i]].push_back(steps_[i].seconds.value);
    }
    std::map<int, double> result;
    for (const auto& [mode, seconds] : seconds_by_mode) result[mode] = median_of(seconds, 0);
    return result;
  }

  void add_segment(std::int64_t begin, std::int64_t end) {
    TrialSegment segment;
    segment.begin = seconds_before_step(begin), segment.end = seconds_before_step(end);
    for (const Decision& decision : decisions_)
      if (changes_membership(decision) && decision.step + 1 == begin)
        last_seconds_.clear(), segment.is_loss |= decision.kind == "recover";
    std::map<int, double> seconds_by_mode = median_seconds_by_mode(begin, end);
    const std::map<int, double> measured_seconds = seconds_by_mode;
    for (const Decision& decision : decisions_) {
      if (!is_automatic(decision) || decision.step < begin || decision.step >= end) continue;
      const auto from = measured_seconds.find(mode_of(name_(decision.from), Response::replan));
      if (from == measured_seconds.end()) continue;
      const auto add_prediction = [&](const std::string& plan, Response response, double gain) {
        if (gain > -1) seconds_by_mode.emplace(mode_of(plan, response), from->second / (1 + gain));
      };
      add_prediction(name_(decision.to), Response::replan, *decision.predicted_gain);
      for (const PlanAlternative& alternative : decision.alternatives)
        if (alternative.predicted_gain)
          add_prediction(alternative.plan, find_response(alternative.response).value_or(Response::replan),
                         *alternative.predicted_gain);
    }
    for (const auto& [mode, seconds] : seconds_by_mode) last_seconds_[mode] = seconds;
    for (const auto& [mode, seconds] : last_seconds_) {
      segment.step_seconds.resize(std::max(segment.step_seconds.size(), static_cast<std::size_t>(mode) + 1));
      segment.step_seconds[static_cast<std::size_t>(mode)] = seconds;
    }
    for (const ConditionSpan& condition_span : conditions_)
      if (condition_span.finding.begin_step < end && condition_span.end > begin)
        segment.conditions.push_back(
            {parse_cause(condition_span.finding.cause, "decisions.jsonl"), condition_span.finding.factor,
             segment.begin - seconds_before_step(condition_span.finding.begin_step)});
    if (segment.end > segment.begin) result_.trial.segments.push_back(std::move(segment));
  }

  void finish() {
    TrialCase& trial = result_.trial;
    std::vector<double> pauses, errors;
    for (const Decision& decision : decisions_) {
      if (decision.kind == "switch") pauses.push_back(decision.pause.value);
      if (is_automatic(decision) && decision.measured_gain && *decision.measured_gain > -1 &&
          *decision.predicted_gain > -1)
        errors.push_back(std::abs(std::log((1 + *decision.measured_gain) / (1 + *decision.predicted_gain))));
    }
    for (TrialSegment& segment : trial.segments) segment.step_seconds.resize(trial.modes.size(), 0);
    for (std::size_t m = 0; m < trial.modes.size(); ++m) {
      TrialMode& mode = trial.modes[m];
      mode.pause_seconds = median_of(pauses, kDefaultPause);
      double min_seconds = 0;
      for (const TrialSegment& segment : trial.segments)
        if (const double seconds = segment.step_seconds[m];
            seconds > 0 && (min_seconds == 0 || seconds < min_seconds))
          min_seconds = seconds;
      mode.usual_seconds = min_seconds > 0 ? min_seconds : 1;
    }
    trial.prediction_error = median_of(errors, kDefaultPredictionError);
    trial.detection_steps = median_of(detection_delays_, kDefaultDetectionSteps);
  }

  const std::vector<StepMetrics>& steps_;
  const std::vector<Decision>& decisions_;
  const NameOf& name_;
  const std::int64_t last_step_;
  std::map<std::int64_t, double> step_ends_;  // by step: seconds since the start of the run
  std::vector<ConditionSpan> conditions_;
  std::vector<double> detection_delays_;   // steps from the start of a condition to the decision
  std::set<std::int64_t> segment_starts_;  // first steps of the segments
  std::vector<int> mode_at_;               // indexed like steps_
  std::map<int, double> last_seconds_;     // by mode: last known step time in seconds
  RecordedTrial result_;
};

}  // namespace

RecordedTrial recorded_trial(const std::vector<StepMetrics>& steps, const std::vector<Decision>& decisions,
                             const std::function<std::string(const std::string& hash)>& name) {
  ensure(!steps.empty(), "recorded_trial(): expected at least one step");
  return Recorder(steps, decisions, name).run();
}

}  // namespace optimus
