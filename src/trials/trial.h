// Trial: the progress of a policy in a simulated run in which nodes join and leave and conditions begin and
// end.
//
// A run consists of *segments* in which nothing changes. In each segment, every *mode* (a plan, or a number
// of used nodes) has a step time. Policies learn of a change with a delay (a loss after some time, a slowdown
// after some steps), receive predictions with some error, and pay pauses. The hindsight oracle is the best
// sequence of modes given full knowledge of the run, including pauses. Takes time proportional to segments x
// modes. Pure and deterministic.
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
  std::vector<double> step_seconds;  // [mode]; 0: cannot run
  // A device of the running plan is lost at the start. The step in flight and the mode's undone_steps
  // are lost.
  bool is_loss = false;
  std::vector<OngoingCondition> conditions{};  // ages at the start of the segment
  // For a loss: modes use certain nodes, so a mode that can still run has lost none of its nodes.
  bool is_by_name = false;
};
// Whether the start of the segment is a loss for a run in this mode; -1: no mode is running.
inline bool is_loss_to(const TrialSegment& segment, int mode) {
  return segment.is_loss && mode >= 0 &&
         !(segment.is_by_name && segment.step_seconds[static_cast<std::size_t>(mode)] > 0);
}

struct TrialMode {
  Response response = Response::replan;
  int devices = 0;
  double usual_seconds = 1;
  double pause_seconds = 0.1;              // pause to switch to it
  std::optional<double> shrink_seconds{};  // pause coming from a mode with more devices; unset: the same
  // Standard deviation of the permanent prediction error of this mode, in addition to other errors.
  double uncertainty = 0;
  double undone_steps = 0;  // steps lost by a loss, besides half of the step in flight; as in PlanOption
};

struct TrialCase {
  std::vector<TrialMode> modes;
  std::vector<TrialSegment> segments;  // consecutive
  int first_mode = -1;                 // mode at the start of the run; -1: training has to start first
  RecoveryCosts costs{};
  double detection_steps = 10;       // until a slowdown is detected
  double decision_interval = 5;      // until the policy is asked again; doubles each time
  double prediction_error = 0.05;    // of the logarithm of predicted step times of modes that are not running
  double permanent_error = 0;        // the same, constant for each mode
  double prediction_bias = 1;        // systematic factor on predicted step times: an inaccurate cost model
  double pause_prediction_bias = 1;  // systematic factor on predicted pauses
  std::uint64_t seed = 1;
};

struct TrialOutcome {
  double useful_steps = 0;  // useful work; all steps are equal
  double seconds_lost = 0;  // idle although some mode could run
  int switches = 0, steps_lost = 0, decisions = 0;
};

TrialOutcome run_trial(const Policy& policy, const TrialCase& trial_case);

// The same with an arbitrary decision function. It also receives the position in the trial, which training
// may use but a policy may not.
struct TrialPoint {
  std::size_t segment = 0;
  double elapsed_seconds = 0, useful_steps = 0;
  std::span<const int> modes;  // [option]; -1: stand still
};
using Decider = std::function<Choice(const Situation&, const TrialPoint&)>;
TrialOutcome run_trial(const Decider& decider, const TrialCase& trial_case);

// The best possible sequence of modes; an upper bound of the useful steps of every policy.
TrialOutcome hindsight(const TrialCase& trial_case);

}  // namespace optimus
