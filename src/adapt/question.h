// Question and Answer: the input and the result of a comparison of plans (adapt/weighing.h), which runs on a
// separate thread. Plain data.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "adapt/calibration.h"
#include "adapt/gain_verdicts.h"
#include "adapt/prediction_memory.h"

namespace optimus {

struct Question {
  Plan plan;                        // the current plan
  std::vector<Plan> earlier_plans;  // plans that the run may return to
  std::vector<Condition> conditions;
  // The standard deviation of the logarithm of each condition's factor, by (cause, location).
  std::map<std::pair<Cause, int>, double> spreads;
  std::vector<OngoingCondition> ongoing;
  HardwareProfile machines;  // calibrated, without current conditions
  double seconds = 0;        // of a step on the current plan
  double since_switch = 0;   // seconds
  double uncertainty = 0;    // relative uncertainty of the measured step time
  double exploration_left = 0, run_left = Situation{}.run_left;  // seconds
  BlockTimeRatios rates{};
  double ring_factor = 1;
  // Gains of the last switch, and the number of seconds until a scripted condition changes.
  std::optional<double> predicted_gain, measured_gain, true_remaining_seconds;
  bool is_provisional = false;
  bool is_settled = true;  // `seconds` was measured under these conditions
  GainTotals totals;
  std::map<MeasurementKey, double> step_times;
  // The step time of the only plan in `earlier_plans`. Set only if nothing has changed since the run left
  // that plan.
  std::optional<double> seconds_before;
  std::string evidence;                   // message for users
  std::vector<RecordedFinding> findings;  // to which `evidence` refers
  PredictionMemory memory;
};

struct Answer {
  // At most one of the two is set. Neither is set if the last switch is too recent.
  std::optional<PlanProposal> proposal{};
  std::optional<StayDecision> stay_decision{};
  std::vector<Condition> conditions{};
  double pause = 0;  // predicted pause of the proposed switch, in seconds
  PredictionMemory memory{};
};

}  // namespace optimus
