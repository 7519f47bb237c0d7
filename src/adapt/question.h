// Question and Answer: what the controller passes to a weighing on a thread, and what it gets back
// (adapt/weighing.h). Plain data.
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
  Plan plan;                        // the present one
  std::vector<Plan> earlier_plans;  // plans that the run may return to
  std::vector<Condition> conditions;
  std::map<std::pair<Cause, int>, double> spreads;  // of the conditions' factors: of the logarithm
  std::vector<OngoingCondition> ongoing;
  HardwareProfile machines;                                      // as calibrated, without conditions
  double seconds = 0;                                            // of a step
  double since_switch = 0;                                       // seconds
  double uncertainty = 0;                                        // of measured step times
  double exploration_left = 0, run_left = Situation{}.run_left;  // seconds
  RoleRates rates{};
  double ring_factor = 1;
  // Gains of the last switch. true_rest: seconds until a scripted condition changes.
  std::optional<double> predicted_gain, measured_gain, true_rest;
  bool is_provisional = false;
  bool is_settled = true;  // the step time was measured under these conditions
  GainTotals totals;
  std::map<MeasurementKey, double> step_times;
  // Step time of the only earlier plan. Set if nothing has happened since the run has left it.
  std::optional<double> seconds_before;
  std::string evidence;  // text for users
  PredictionMemory memory;
};

struct Answer {
  // At most one of them. Neither: the last switch is too recent.
  std::optional<PlanProposal> proposal{};
  std::optional<StayDecision> stay_decision{};
  std::vector<Condition> conditions{};
  double pause = 0;  // predicted pause of the proposed switch, in seconds
  PredictionMemory memory{};
};

}  // namespace optimus
