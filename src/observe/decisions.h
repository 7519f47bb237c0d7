// What a run has decided about its plan, and decisions.jsonl, where it writes that: one JSON object a line, each with the step behind
// which it came. The file is kept as metrics.jsonl is (observe/metrics.h).
//
// What a switch really gained is known some steps later: a line of kind "realised" then follows, which parse_decisions() puts into the
// switch that began its epoch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "adapt/plan_proposal.h"
#include "base/json.h"
#include "base/units.h"
#include "observe/metrics.h"

namespace optimus {

struct Decision {
  std::int64_t step = 0;
  std::string kind;          // switch, recover, join, drain, stay
  std::string evidence{};    // why: "scripted", "asked for", or what was measured
  std::string from{}, to{};  // hashes of plans
  std::int64_t epoch = 0;    // of the plan from then on
  // Of steps a second: before / after - 1, where these are seconds of a step. Only of what the run chose itself.
  std::optional<double> predicted_gain{}, realised_gain{};
  Seconds pause{}, prepare{};  // training stood still; it went on meanwhile
  Bytes moved{}, minimum{};    // no choice of places moves less than the minimum
  Bytes early{};               // of what moved: before the pause
  Bytes precopied{};           // sent again because of that
  std::string cause{};         // "link", as adapt/condition.h has it; none: nothing was found to be slow
  std::vector<PlanAlternative> alternatives{};
  bool operator==(const Decision&) const = default;
};

// All fields; what is not known is null, no alternatives are an empty list.
OrderedJson to_json(const Decision& decision);

// Lines of decisions.jsonl, without their end. Of alternatives the first 16 are written: a line stays short.
std::string decision_line(const Decision& decision);
std::string realised_line(std::int64_t step, std::int64_t epoch, double gain);

// The whole file, realised gains put where they belong. A last line without its end is left out: it is being written, or its writer was
// killed. Throws UserError with the line's number for what is none of ours.
std::vector<Decision> parse_decisions(std::string_view content, const std::string& source);

// One line for people; plans as `from` and `to` name them, since a decision has their hashes only.
//   step 412: slow link 1–3: 9.10x since step 397 → pp4 → pp2 tp2, predicted +38 %, realised +35 %, paused 36.0 ms, moved …
//   step 61: stay: slow link 1–3: 2.10x since step 45; nothing pays (pp4); instead pp2 tp2 (another plan) +1 %
std::string text(const Decision& decision, const std::string& from, const std::string& to);

// "+38 %", "-2 %"
std::string gain_text(double gain);

}  // namespace optimus
