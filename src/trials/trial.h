// Trial: a simulated run in which nodes join and leave and conditions begin and end. It measures the training
// progress under a policy.
//
// A run consists of *segments* in which nothing changes. In each segment, every *mode* (a plan, or a number
// of nodes in use) has a step time. Policies learn of changes with a delay (losses after some time, slowdowns
// after some steps), receive inaccurate predictions, and pay for switches with pauses. The hindsight oracle
// is the best sequence of modes given full knowledge of the run, including pauses. The cost of a trial is
// proportional to segments x modes. Pure and deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "policy/decide.h"
#include "recovery/recovery_costs.h"

namespace optimus {

struct TrialSegment {
  double begin = 0, end = 0;
  std::vector<double> step_seconds;  // [mode]; 0: the mode cannot run
  // If true, a device of the running plan is lost at the start of the segment. The step in flight and the
  // mode's undone_steps are lost.
  bool is_loss = false;
  std::vector<OngoingCondition> conditions{};  // ages are those at the start of the segment
  // Only for losses. If true, each mode uses specific nodes, so a mode that can still run has not lost any of
  // them.
  bool is_by_name = false;
};
// Whether a run in this mode loses a device at the start of the segment. Mode -1 means that no mode is
// running.
inline bool is_loss_to(const TrialSegment& segment, int mode) {
  return segment.is_loss && mode >= 0 &&
         !(segment.is_by_name && segment.step_seconds[static_cast<std::size_t>(mode)] > 0);
}

struct TrialMode {
  Response response = Response::replan;
  int devices = 0;
  double usual_seconds = 1;
  double pause_seconds = 0.1;  // pause of a switch to this mode
  // The pause if the previous mode has more devices. If empty, it equals pause_seconds.
  std::optional<double> shrink_seconds{};
  // Standard deviation of the permanent prediction error of this mode, in addition to other errors.
  double uncertainty = 0;
  double undone_steps =
      0;  // steps that a loss undoes, in addition to half of the step in flight; see PlanOption
};

struct TrialCase {
  std::vector<TrialMode> modes;
  std::vector<TrialSegment> segments;  // consecutive in time
  int first_mode = -1;                 // mode at the start of the run; -1: training has to start first
  RecoveryCosts costs{};
  double detection_steps = 10;   // number of steps until a slowdown is detected
  double decision_interval = 5;  // seconds until the policy is asked again; doubles each time
  // The standard deviation of the logarithm of predicted step times, for modes that are not running.
  double prediction_error = 0.05;
  double permanent_error = 0;  // standard deviation of an error that is drawn once for each mode
  double prediction_bias = 1;  // systematic factor on predicted step times, as from an inaccurate cost model
  double pause_prediction_bias = 1;  // systematic factor on predicted pauses
  std::uint64_t seed = 1;
};

struct TrialOutcome {
  double useful_steps = 0;  // all steps count equally
  double seconds_lost = 0;  // time without training although some mode could run
  int switches = 0, steps_lost = 0, decisions = 0;
};

TrialOutcome run_trial(const Policy& policy, const TrialCase& trial_case);

// Runs a trial with an arbitrary decision function. The function also receives the position in the trial. The
// training of a network may use the position, but policies must not.
struct TrialPoint {
  std::size_t segment = 0;
  double elapsed_seconds = 0, useful_steps = 0;
  std::span<const int> modes;  // [option]: its mode; -1: no training
};
using Decider = std::function<Choice(const Situation&, const TrialPoint&)>;
TrialOutcome run_trial(const Decider& decider, const TrialCase& trial_case);

// Returns the outcome of the best possible sequence of modes. Its useful steps are an upper bound for every
// policy.
TrialOutcome hindsight(const TrialCase& trial_case);

}  // namespace optimus
