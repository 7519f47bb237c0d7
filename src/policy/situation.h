// Situation: what a policy knows when it decides, as plain data: the options, the conditions, the losses, and
// the outcomes of earlier switches. Simulated runs (trials/trial.h) and real ones use the same values. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "policy/condition.h"

namespace optimus {

// From inexpensive to expensive. `resume`: a plan that ran before, from before the condition or the last
// switch.
enum class Response { stay, share, recut, replan, drop, resume };
std::string text(Response response);

struct PlanOption {
  Response response = Response::stay;
  double step_seconds = 1;    // predicted under the present conditions; 0: the plan cannot run
  double usual_seconds = 1;   // predicted without conditions
  double uncertainty = 0.05;  // standard deviation of the prediction's logarithm
  double pause_seconds = 0;   // of the switch to this plan
  int devices = 0;
  // All predictions for this plan under these conditions so far, including the present one.
  double mean_predicted_seconds = 0;  // geometric mean; 0: as step_seconds
  int num_predictions = 1;
  double prediction_spread = 0;  // standard deviation of their logarithms
  bool is_measured = false;  // the plan ran under these conditions: step_seconds is its measured step time
  // Steps that a loss undoes on average, because no other device has the state that is lost: the steps since
  // the last checkpoint and the time to load it.
  double undone_steps = 0;
};

struct OngoingCondition {
  Cause cause = Cause::device;
  double factor = 1, age = 0;  // seconds
};

struct Situation {
  double elapsed_seconds = 0;  // seconds since the run began
  // The first option is the present plan: its step time is measured, its doubt is small.
  std::vector<PlanOption> options{};
  std::vector<OngoingCondition> conditions{};
  double since_switch = 1e9;  // seconds
  double losses_per_device_second = 0, recovery_seconds = 1;
  double exploration_left = 0;             // seconds that may be spent on doubtful options
  std::optional<double> predicted_gain{};  // of the last switch, as part of the step
  std::optional<double> measured_gain{};   // of the last switch; empty until enough steps are measured
  std::optional<double> true_rest{};       // seconds that the conditions last; only for the oracle
  double run_left = 1e9;  // seconds until the run ends, at the present speed; the default: not known
  // The history of the run so far.
  double since_loss = 1e9, since_arrival = 1e9;  // seconds
  int losses_last_hour = 0, arrivals_last_hour = 0, switches = 0;
  int devices_present = 0;  // used by the largest plan that can run now; 0: not known
  // Plans that have run: log(measured step time / predicted step time).
  int num_missed = 0;
  double mean_miss = 0, miss_spread = 0;
  // Switches that the policy chose and whose gain is known: sums of parts of the step.
  int num_judged = 0;
  double gain_promised = 0, gain_measured = 0;
};

// The part of an option's work that losses undo, if losses come as often as so far; less than 1.
double undone_part(const Situation& situation, const PlanOption& option);
// Seconds per step that is not undone by a loss.
double lasting_seconds(const Situation& situation, const PlanOption& option);
// The last switch has yielded less than a quarter of its predicted gain.
bool has_disappointed(std::optional<double> predicted_gain, std::optional<double> measured_gain);

}  // namespace optimus
