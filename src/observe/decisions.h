// The plan decisions of a run, and the file decisions.jsonl that stores them. Each line is a JSON object and
// has the step after which the decision was made. When a run resumes, the file is truncated like
// metrics.jsonl (observe/metrics.h).
//
// The measured gain of a switch is known only some steps later. It is stored in a separate line of kind
// "realised", which parse_decisions() merges into the switch that started the epoch.
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
  std::string kind;  // switch, recover, join, drain, stay
  std::string
      evidence{};  // reason: "scripted", "requested" or a measurement; for "stay" also the reason to stay
  std::string from{}, to{};            // hashes of plans
  std::string from_name{}, to_name{};  // "dp2 zero2 +copy"; empty in records of version 0.1
  std::int64_t epoch = 0;              // of the new plan
  // Relative gain in steps per second: old step time / new step time - 1. Set only for changes that the run
  // decided automatically.
  std::optional<double> predicted_gain{}, measured_gain{};
  double payback_steps = 0;    // predicted number of steps until the gain makes up for the pause
  Seconds step_seconds{};      // duration of the last step before the decision; 0: unknown
  Seconds pause{}, prepare{};  // `pause`: training stopped; `prepare`: training continued meanwhile
  Bytes moved{}, minimum{};    // `minimum`: lower bound over all placements of the new plan
  Bytes early{};               // the part of `moved` that was sent before the pause
  Bytes precopied{};    // bytes that were sent again because they had changed since they were sent early
  int num_workers = 0;  // after a membership change; 0: another kind of decision
  std::int64_t steps_lost = 0;
  std::string cause{};  // "link", as in policy/condition.h; empty if nothing was found to be slow
  std::vector<RecordedFinding> findings{};  // empty in records of version 0.2 and earlier
  std::vector<PlanAlternative> alternatives{};
  bool operator==(const Decision&) const = default;
};

// Contains all fields. Unknown values are null, and the list of alternatives may be empty.
OrderedJson to_json(const Decision& decision);

// Returns a line of decisions.jsonl, without the newline. Only the first 16 alternatives are written, to
// limit the length.
std::string decision_line(const Decision& decision);

// The measured gain of the switch that started an epoch.
struct MeasuredGain {
  std::int64_t step = 0, epoch = 0;
  double gain = 0, predicted = 0;
};
std::string decision_line(const MeasuredGain& measured);

// Parses the whole file and merges measured gains. An unterminated last line is ignored, because it is still
// being written or its writer was killed. Throws UserError with the line number if a line is invalid.
std::vector<Decision> parse_decisions(std::string_view content, const std::string& source);

// Returns a line for users, which is shown during training, in responses to requests, in `optimus decisions`
// and in reports. Plans without names are identified by their hashes.
//
//   step 412: slow network of node 1–3: 9.10x since step 397; switching pp4 → pp2 tp2 (expected +38 %,
//     break-even after 9 steps); plan 624e → 37d7, prepared 0.21 s, paused 36 ms (0.4 steps), moved 2 KiB
//     (minimum 1 KiB); measured +35 %; alternatives: dp4 (another plan) +1 %
//   step 13: worker 3 was lost; continuing with 3 workers on dp3 (was dp4); paused 180 ms (2.1 steps), …
//   step 61: slow network of node 1–3: 2.10x since step 45; no plan is worth the pause; keeping pp4;
//     alternatives: pp2 tp2 +1 %
std::string text(const Decision& decision);
std::string text(const MeasuredGain& measured);

// "+38 %", "-2 %"
std::string gain_text(double gain);

}  // namespace optimus
