// Policy: the kind of a policy and its constants. A plain value; decide.h applies it.
//
//   never        keeps the plan while it can run
//   always-best  switches to the fastest plan at once
//   threshold    switches to the fastest plan if it is 10 % faster, or if a condition costs 20 %
//   lookahead    maximizes the work of the next minutes, minus expected losses and pauses (Parcae's liveput)
//   malleus      responds only to slow devices (factor 1.2 or more), with the best uneven plan (Malleus)
//   rule         the default: compares the gain over the condition's expected duration with the pauses, the
//                uncertainty of the prediction and the steps that losses undo; chooses the least expensive
//                sufficient response; returns to the earlier plan if the gain is not reached
//   learned      a small network trained in simulated runs, guarded by the rule (policy/learned_policy.h)
//   oracle       hindsight (trials/trial.h); in a run it knows how long the conditions will last
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "policy/situation.h"

namespace optimus {

enum class PolicyKind { never, always_best, threshold, lookahead, malleus, rule, learned, oracle };

struct LearnedPolicy;
struct Policy {
  PolicyKind kind = PolicyKind::rule;
  double threshold = 0.1, condition_threshold = 1.2;
  double lookahead_seconds = 600;
  double horizon = 36'000;     // upper limit of the expected duration of a condition; seconds
  double caution = 1;          // a gain must exceed this number of standard deviations of its prediction
  double min_gain = 0.02;      // minimum gain of a switch, as a fraction of the step time
  double payback = 1.5;        // minimum gain as a multiple of the pause
  double settle_seconds = 30;  // minimum time between two switches; 25 steps if those are shorter
  // Weights of the learned policy. If null, the built-in weights are used. Must outlive this object.
  const LearnedPolicy* network = nullptr;
  bool is_guarded = true;  // the rule decides where the learned policy is unreliable
};

// The policy's decision: an index into Situation::options.
struct Choice {
  std::size_t option = 0;
  double gain_seconds = 0;  // expected gain, net of all costs
  std::string reason{};
};

// The reason given for a return to an earlier plan after the predicted gain was not reached.
inline constexpr const char* kGainMissed = "the predicted gain was not reached";

std::vector<std::string> policy_words();
Policy parse_policy(const std::string& word, const std::string& setting_name);  // throws UserError
std::string text(PolicyKind kind);

// The number of seconds after a switch during which the plan is not changed again, because the gain has not
// been measured yet.
double settling_seconds(const Policy& policy, const Situation& situation);

}  // namespace optimus
