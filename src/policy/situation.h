// Situation: everything that a policy knows when it decides: the options, the current conditions, the losses
// of devices, and the outcomes of earlier switches. Simulated runs (trials/trial.h) and real runs provide the
// same values. Plain data.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "policy/condition.h"

namespace optimus {

// Responses to conditions, from the least to the most expensive. `recut` redistributes the layers over the
// stages. `resume` returns to a plan that ran before the condition or before the last switch.
enum class Response { stay, share, recut, replan, drop, resume };
std::string text(Response response);
// The response with this text, also as earlier versions wrote it.
std::optional<Response> find_response(const std::string& word);

struct PlanOption {
  Response response = Response::stay;
  double step_seconds = 1;    // predicted under the current conditions; 0: the plan cannot run
  double usual_seconds = 1;   // predicted seconds per step without conditions
  double uncertainty = 0.05;  // standard deviation of the prediction's logarithm
  double pause_seconds = 0;   // seconds of training lost by the switch to this plan
  int devices = 0;
  // Statistics of all predictions for this plan under these conditions, including the latest one.
  double mean_predicted_seconds = 0;  // geometric mean; 0: equal to step_seconds
  int num_predictions = 1;
  double prediction_spread = 0;  // standard deviation of the logarithms of these predictions
  bool is_measured = false;  // the plan ran under these conditions: step_seconds is its measured step time
  // Mean number of steps that a device loss undoes if no other device has the lost state: the steps since the
  // last checkpoint, plus the number of steps that could run while it is loaded.
  double undone_steps = 0;
};

struct OngoingCondition {
  Cause cause = Cause::device;
  double factor = 1, age = 0;  // age: seconds since it began
};

struct Situation {
  double elapsed_seconds = 0;  // seconds since the run began
  // The first option is the current plan. Its step time is measured, so its uncertainty is small.
  std::vector<PlanOption> options{};
  std::vector<OngoingCondition> conditions{};
  double since_switch = 1e9;  // seconds since the last switch
  double losses_per_device_second = 0, recovery_seconds = 1;
  double exploration_left = 0;             // seconds that may be spent on trying uncertain options
  std::optional<double> predicted_gain{};  // of the last switch, as a fraction of the step time
  std::optional<double> measured_gain{};   // of the last switch; empty until enough steps are measured
  // Seconds until the conditions end; only for the oracle.
  std::optional<double> true_remaining_seconds{};
  double run_left = 1e9;  // seconds until the run ends, at the current speed; default: unknown
  // The history of the run so far.
  double since_loss = 1e9, since_arrival = 1e9;  // seconds
  int losses_last_hour = 0, arrivals_last_hour = 0, switches = 0;
  int devices_present = 0;  // devices of the largest plan that can run now; 0: unknown
  // Statistics of the prediction error, log(measured step time / predicted step time), of the plans that have
  // run.
  int num_prediction_errors = 0;
  double mean_prediction_error = 0, prediction_error_spread = 0;
  // Switches that the policy chose and whose gain has been measured. The sums are fractions of the step time.
  int num_judged_switches = 0;
  double predicted_gain_sum = 0, measured_gain_sum = 0;
};

// The fraction of an option's work that device losses undo at the current loss rate; at most 0.9.
double undone_part(const Situation& situation, const PlanOption& option);
// Average seconds for each step that is not undone by a loss: step_seconds / (1 - undone_part).
double lasting_seconds(const Situation& situation, const PlanOption& option);
// Whether the last switch has yielded less than a quarter of its predicted gain.
bool has_missed_gain(std::optional<double> predicted_gain, std::optional<double> measured_gain);

}  // namespace optimus
