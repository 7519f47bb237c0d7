// Implements policy.h.
#include "policy/policy.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

constexpr std::array<const char*, 8> kPolicies = {"never",   "always-best", "threshold", "lookahead",
                                                  "malleus", "rule",        "learned",   "oracle"};

}  // namespace

std::string text(PolicyKind kind) { return kPolicies[static_cast<std::size_t>(kind)]; }

std::vector<std::string> policy_words() { return {kPolicies.begin(), kPolicies.end()}; }

Policy parse_policy(const std::string& word, const std::string& setting_name) {
  for (std::size_t i = 0; i < kPolicies.size(); ++i)
    if (word == kPolicies[i]) return {.kind = static_cast<PolicyKind>(i)};
  throw UsageError("{}: {} is not one of {}", setting_name, in_quotes(word), fmt::join(kPolicies, ", "));
}

double settling_seconds(const Policy& policy, const Situation& situation) {
  constexpr double kJudgedSteps = 25;  // number of steps within which a gain becomes measurable
  return std::min(policy.settle_seconds, kJudgedSteps * situation.options.front().step_seconds);
}

}  // namespace optimus
