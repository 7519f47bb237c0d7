// Profiles of all ranks over a few steps. A profile contains the instruction times and the memory of a rank,
// in the same format as a predicted step (simulate/simulate.h). The functions merge profiles into a Perfetto
// trace, and compare them with the prediction for each kind of instruction. No side effects. run/profile.h
// takes the measurements.
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
// Throws UserError if the profile is invalid. `source` is the file name for error messages.
RankProfile parse_rank_profile(const Json& json, const std::string& source);

// Seconds per step for one kind of instruction: the mean over ranks and steps.
struct ComparedKind {
  std::string kind;
  Lane lane = Lane::compute;
  double measured = 0;
  std::optional<double> predicted{};
};
// The result is sorted by lane, then by decreasing time.
std::vector<ComparedKind> compare_kinds(const std::vector<RankProfile>& ranks, const Plan& plan,
                                        const std::optional<ExpectedStep>& expected);

// The fraction of a rank's communication time during which it also computed. Returns nullopt if there was no
// communication.
std::optional<double> overlap(const RankProfile& profile);

// The comparison as a table for the console, or as JSON. The JSON also contains the memory of each rank.
std::string comparison_text(const std::vector<RankProfile>& ranks, const Plan& plan,
                            const std::optional<ExpectedStep>& expected);
OrderedJson comparison_json(const std::vector<RankProfile>& ranks, const Plan& plan,
                            const std::optional<ExpectedStep>& expected);

// Returns a Perfetto trace with one process per rank, which has a track for steps and a track for each lane.
// After kMaxTracedInstructions instructions in total, the remaining ranks are omitted. `comparison` is stored
// next to the events under the key "profile".
std::string profile_trace(const std::vector<RankProfile>& ranks, const OrderedJson& comparison);

}  // namespace optimus
