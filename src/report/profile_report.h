// The profiles of a run's ranks for a few steps: the times of each rank's instructions and its memory, in the
// same format as a predicted step (simulate/simulate.h). Merges them into a Perfetto trace, and compares them
// with the prediction by kind of instruction. Pure. run/profile.h takes the measurements.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "settings/expected.h"
#include "simulate/simulate.h"

namespace optimus {

struct ProfiledStep {
  std::int64_t step = 0;
  double start = 0, end = 0;
};

struct RankProfile {
  int rank = 0;
  std::string host, device;
  int pipeline = 0, stage = 0;
  // Times are in seconds since all ranks started the first of the steps.
  std::vector<ProfiledStep> steps;
  std::vector<TracedInstruction> instructions;
  StageMemory memory;  // `activations` is everything that a step uses besides the state
  Bytes resident;      // peak resident memory of the process; the same for all ranks of one process
};
OrderedJson profile_json(const RankProfile& profile);
// `source` names the file in errors. Throws UserError.
RankProfile parse_rank_profile(const Json& json, const std::string& source);

// Seconds per step, as the mean over ranks and steps.
struct ComparedKind {
  std::string kind;
  Lane lane = Lane::compute;
  double measured = 0;
  std::optional<double> predicted{};
};
// Ordered by lane, then by decreasing time.
std::vector<ComparedKind> compare_kinds(const std::vector<RankProfile>& ranks, const Plan& plan,
                                        const std::optional<ExpectedStep>& expected);

// The fraction of communication time during which the same rank computed; nullopt if there was no
// communication.
std::optional<double> overlap(const RankProfile& profile);

// The comparison as a table for the console, and as JSON, which also has the memory of each rank.
std::string comparison_text(const std::vector<RankProfile>& ranks, const Plan& plan,
                            const std::optional<ExpectedStep>& expected);
OrderedJson comparison_json(const std::vector<RankProfile>& ranks, const Plan& plan,
                            const std::optional<ExpectedStep>& expected);

// The Perfetto trace: a process per rank, with a track for its steps and one per lane. Ranks beyond a total
// of kMaxTracedInstructions instructions are left out. `comparison` is stored next to the events, under the
// key "profile".
std::string profile_trace(const std::vector<RankProfile>& ranks, const OrderedJson& comparison);

}  // namespace optimus
