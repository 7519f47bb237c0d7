// The plan decisions of a run, and decisions.jsonl, where it records them: one JSON object per line, each
// with the step after which it was made. The file is maintained like metrics.jsonl (observe/metrics.h).
//
// The measured gain of a switch is known some steps later: a line of kind "realised" then follows, which
// parse_decisions() merges into the switch that began its epoch.
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
  std::string evidence{};    // reason: "scripted", "asked for", or a measurement
  std::string from{}, to{};  // hashes of plans
  std::int64_t epoch = 0;    // of the new plan
  // Gain in steps per second: old step time / new step time - 1. Set only for changes that the run chose
  // itself.
  std::optional<double> predicted_gain{}, measured_gain{};
  Seconds pause{}, prepare{};  // `pause`: training stood still; `prepare`: training continued meanwhile
  Bytes moved{}, minimum{};    // `minimum`: lower bound over all placements of the new plan
  Bytes early{};               // the part of `moved` that was sent before the pause
  Bytes precopied{};           // bytes that had to be sent again because they were sent early
  std::string cause{};         // "link", as in policy/condition.h; empty if nothing was found to be slow
  std::vector<PlanAlternative> alternatives{};
  bool operator==(const Decision&) const = default;
};

// All fields; unknown values are null, and the list of alternatives may be empty.
OrderedJson to_json(const Decision& decision);

// Lines of decisions.jsonl, without newline. Only the first 16 alternatives are written, to limit the length.
std::string decision_line(const Decision& decision);
std::string measured_gain_line(std::int64_t step, std::int64_t epoch, double gain);

// Parses the whole file and merges measured gains. An unterminated last line is ignored: it is being written,
// or its writer was killed. Throws UserError with the line number for an invalid line.
std::vector<Decision> parse_decisions(std::string_view content, const std::string& source);

// One line for users; `from` and `to` are the plans' names, since a decision contains only their hashes.
//
//   step 412: slow link 1–3: 9.10x since step 397 → pp4 → pp2 tp2, predicted +38 %, measured +35 %, paused …
//   step 61: stay: slow link 1–3: 2.10x since step 45; nothing pays (pp4); alternatives: pp2 tp2 (recut) +1 %
std::string text(const Decision& decision, const std::string& from, const std::string& to);

// "+38 %", "-2 %"
std::string gain_text(double gain);

}  // namespace optimus
