// What a run has decided about its plan, and decisions.jsonl, where it writes that: one JSON object a line, each with the step behind
// which it came. The file is kept as metrics.jsonl is (observe/metrics.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/units.h"
#include "observe/metrics.h"

namespace optimus {

struct Decision {
  std::int64_t step = 0;
  std::string kind;          // switch, recover, join, drain, stay
  std::string evidence{};    // why: "scripted", "asked for", or what was measured
  std::string from{}, to{};  // hashes of plans
  std::int64_t epoch = 0;    // of the plan from then on
  std::optional<double> predicted_gain{}, realised_gain{};
  Seconds pause{}, prepare{};  // training stood still; it went on meanwhile
  Bytes moved{}, minimum{};    // no choice of places moves less than the minimum
  Bytes early{};               // of what moved: before the pause
  Bytes precopied{};           // sent again because of that
};

std::string decision_line(const Decision& decision);

}  // namespace optimus
