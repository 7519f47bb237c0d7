// Policies: whether to change the plan now, and to which. A policy is a value, what it is told is plain data (Situation), and so is
// its answer (Choice): the same ones decide in a simulated run (trials/trial.h) and may in a real one.
//
//   never        keeps the plan while it can run
//   always-best  the quickest plan there is, at once
//   threshold    the quickest, when it is a tenth quicker or a condition costs a fifth
//   lookahead    (Parcae's liveput) most work in the next minutes, losses to come and pauses counted
//   malleus      answers slow devices of 1.2 and more with the best uneven plan, and nothing else
//   rule         ours: gain over the condition's expected rest against pause, way back, doubt and what losses undo; cheapest sufficient
//                answer first; it goes back when the gain does not come
//   learned      a small network trained in such trials, guarded by the rule (adapt/learned_policy.h)
//   oracle       hindsight: trials/trial.h; here it knows how long the condition will really last
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "adapt/condition.h"

namespace optimus {

// From cheap to dear; `resume`: a plan that ran before, from before the condition or the last switch.
enum class Response { stay, share, recut, replan, drop, resume };
std::string text(Response response);

struct PlanOption {
  Response response = Response::stay;
  double step_seconds = 1;   // predicted as things are; 0: cannot run
  double usual_seconds = 1;  // without conditions
  double doubt = 0.05;       // of the prediction's logarithm
  double pause_seconds = 0;  // to go there
  int devices = 0;
  // What was said of this plan under these conditions until now, this time included.
  double remembered_seconds = 0;  // geometric mean; 0: as step_seconds
  int times_told = 1;
  double told_spread = 0;    // of their logarithms
  bool is_measured = false;  // it ran under these conditions: step_seconds is what it took
  // Steps that a loss undoes, on average, because no other device has the state that is lost: those since the last checkpoint, and its reading.
  double undone_steps = 0;
};

struct OngoingCondition {
  Cause cause = Cause::device;
  double factor = 1, age = 0;  // seconds
};

struct Situation {
  double now = 0;  // seconds of the run
  std::vector<PlanOption>
      options{};  // the first is the plan that runs: its step is measured, its doubt small
  std::vector<OngoingCondition> conditions{};
  double since_switch = 1e9;  // seconds
  double losses_per_device_second = 0, recovery_seconds = 1;
  double exploration_left = 0;             // seconds that may be spent on doubtful options
  std::optional<double> predicted_gain{};  // of the last switch, part of the step
  std::optional<double> realised_gain{};   // once enough steps are seen
  std::optional<double> true_rest{};       // told to the oracle alone
  double run_left = 1e9;  // seconds, as steps are now, until the run ends; more than a run takes: nobody says
  // What a monitor keeps of the run so far.
  double since_loss = 1e9, since_arrival = 1e9;  // seconds
  int losses_last_hour = 0, arrivals_last_hour = 0, switches = 0;
  int devices_present = 0;  // that the largest plan that can run now would use; 0: not known
  // Plans that came to run: how much longer their steps were than predicted, of the logarithm.
  int num_missed = 0;
  double mean_miss = 0, miss_spread = 0;
  // Switches of its own will whose gain is known: parts of the step, added up.
  int num_judged = 0;
  double gain_promised = 0, gain_kept = 0;
};

struct Choice {
  std::size_t option = 0;
  double gain_seconds = 0;  // expected, net of everything
  std::string reason{};
};

enum class PolicyKind { never, always_best, threshold, lookahead, malleus, rule, learned, oracle };
struct LearnedPolicy;
struct Policy {
  PolicyKind kind = PolicyKind::rule;
  double threshold = 0.1, condition_threshold = 1.2;
  double lookahead_seconds = 600;
  double horizon = 36'000;     // no condition is expected to last longer
  double caution = 1;          // doubts that a gain must exceed
  double least_gain = 0.02;    // part of the step
  double payback = 1.5;        // gain, of its cost
  double settle_seconds = 30;  // between two switches of its own will; 25 steps, where these take less
  const LearnedPolicy* network = nullptr;  // of learned; none: the one that is shipped. Outlives this
  bool is_guarded = true;                  // learned asks the rule where it does not know its way
};
std::vector<std::string> policy_words();
Policy parse_policy(const std::string& word, const std::string& what);  // throws UserError
std::string text(PolicyKind kind);

// The reason of who goes back for that.
inline constexpr const char* kGainDidNotCome = "the gain did not come";
// Less than a quarter of what a switch has promised has come.
bool has_disappointed(std::optional<double> predicted_gain, std::optional<double> realised_gain);
// Seconds behind a switch in which there is none, until it is known what has come of that one.
double settling_seconds(const Policy& policy, const Situation& situation);
// The part of an option's work that losses undo, which come as often as they did so far; less than 1.
double undone_part(const Situation& situation, const PlanOption& option);
// Seconds for a step that stays done.
double lasting_seconds(const Situation& situation, const PlanOption& option);

// Where the plan that runs cannot (0 seconds), an option that can is chosen, unless there is none.
Choice choose(const Policy& policy, const Situation& situation);

}  // namespace optimus
