// Policy: which policy decides, and its constants. A plain value; decide.h applies it.
//
//   never        keeps the plan while it can run
//   always-best  switches to the fastest plan at once
//   threshold    switches to the fastest plan if it is 10 % faster, or if a condition costs 20 %
//   lookahead    maximizes the work of the next minutes, minus expected losses and pauses (Parcae's liveput)
//   malleus      answers only slow devices, from a factor of 1.2, with the best uneven plan (Malleus)
//   rule         the default: compares the gain over the condition's expected duration with the pauses, the
//                doubt of the prediction and the steps that losses undo; takes the least expensive sufficient
//                answer; returns to the earlier plan if the gain is missed
//   learned      a small network trained in simulated runs, guarded by the rule (policy/learned_policy.h)
//   oracle       hindsight: trials/trial.h; in a run it knows how long the condition will last
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
  double horizon = 36'000;                 // no condition is expected to last longer; seconds
  double caution = 1;                      // standard deviations of the prediction that a gain must exceed
  double least_gain = 0.02;                // part of the step
  double payback = 1.5;                    // least gain as a multiple of its cost
  double settle_seconds = 30;              // between two switches; 25 steps if these take less time
  const LearnedPolicy* network = nullptr;  // of the learned policy; null: the shipped one. Must outlive this
  bool is_guarded = true;                  // the rule decides where the learned policy is unreliable
};

// The policy's decision: an index into Situation::options.
struct Choice {
  std::size_t option = 0;
  double gain_seconds = 0;  // expected, net of all costs
  std::string reason{};
};

// The reason of a return for that.
inline constexpr const char* kGainMissed = "the predicted gain was not reached";

std::vector<std::string> policy_words();
Policy parse_policy(const std::string& word, const std::string& setting_name);  // throws UserError
std::string text(PolicyKind kind);

// Seconds after a switch without another one, until the gain of the last switch is known.
double settling_seconds(const Policy& policy, const Situation& situation);

}  // namespace optimus
