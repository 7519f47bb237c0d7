// Trial: what a policy gets done in a simulated run in which nodes come and go and conditions begin and end.
//
// A run is cut into *segments* in which nothing changes. In each, every *mode* (a plan, or a number of nodes in use) has its seconds of a
// step. Policies learn of a change late (a loss after some time, a slowdown after some steps), are told predictions that are wrong by some
// percent, and pay pauses. The hindsight oracle is the best sequence of modes when everything is known before, pauses paid.
// Time of a trial: segments x modes. Pure and deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "adapt/decide.h"
#include "recovery/recovery_costs.h"

namespace optimus {

struct TrialSegment {
  double begin = 0, end = 0;
  std::vector<double> step_seconds;  // [mode]; 0: cannot run
  bool is_loss =
      false;  // it begins with a loss in the plan that runs: the step in flight is lost, and what the mode has undone
  std::vector<OngoingCondition> conditions{};  // ages are those at the begin
  bool is_by_name =
      false;  // of a loss: modes are of certain nodes, and one that can still run has lost none of its own
};
// Whether what the segment begins with is a loss to a run in this mode; -1: none runs.
inline bool is_loss_to(const TrialSegment& segment, int mode) {
  return segment.is_loss && mode >= 0 &&
         !(segment.is_by_name && segment.step_seconds[static_cast<std::size_t>(mode)] > 0);
}

struct TrialMode {
  Response response = Response::replan;
  int devices = 0;
  double usual_seconds = 1;
  double pause_seconds = 0.1;              // to come to it
  std::optional<double> shrink_seconds{};  // from one with more devices; none: the same
  double doubt = 0;  // how far off predictions of this very mode are, for good, besides all others' errors
  double undone_steps = 0;  // by a loss, besides half of the step in flight: as in PlanOption
};

struct TrialCase {
  std::vector<TrialMode> modes;
  std::vector<TrialSegment> segments;  // one behind the other
  int first_mode = -1;                 // that the run begins in; -1: it has to start
  RecoveryCosts costs{};
  double detection_steps = 10;     // until a slowdown is found
  double ask_seconds = 5;          // until a policy is asked again; then twice as long, and so on
  double prediction_error = 0.05;  // of the logarithm of what a policy is told of modes that do not run
  double lasting_error = 0;        // the same, but of a mode for good
  double told_factor = 1;          // what is told of modes that do not run, besides: a model that is wrong
  double told_pause_factor = 1;    // and what is told of pauses
  std::uint64_t seed = 1;
};

struct TrialOutcome {
  double useful_steps = 0;  // steps of the job, all the same work
  double seconds_lost = 0;  // standing still though some mode could run
  int switches = 0, steps_lost = 0, decisions = 0;
};

TrialOutcome run_trial(const Policy& policy, const TrialCase& one);

// The same with whoever decides: it is also told where in the trial it is asked, which is for those who learn, not for those who decide.
struct TrialPoint {
  std::size_t segment = 0;
  double now = 0, useful_steps = 0;
  std::span<const int> modes;  // [option]; -1: stands still
};
using Decider = std::function<Choice(const Situation&, const TrialPoint&)>;
TrialOutcome run_trial(const Decider& decider, const TrialCase& one);

// The best sequence of modes there is; an upper bound of every policy's useful steps.
TrialOutcome hindsight(const TrialCase& one);

}  // namespace optimus
