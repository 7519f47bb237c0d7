// What the ranks of a run saw of a few steps: each its instructions in time and its memory, in the form in which a step is predicted
// (simulate/simulate.h); all together as a file for Perfetto, and beside the prediction, by kinds of instructions. Pure. Who
// measures is run/profile.h.
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
  // Times in seconds since all ranks began the first of the steps.
  std::vector<ProfiledStep> steps;
  std::vector<TracedInstruction> instructions;
  StageMemory memory;  // activations: all that a step uses beside the state
  Bytes resident;      // the most that the process had in memory; of ranks of one process the same
};
OrderedJson profile_json(const RankProfile& profile);
// `source` names the file in errors. Throws UserError.
RankProfile parse_rank_profile(const Json& json, const std::string& source);

// Seconds a step, mean over ranks and steps.
struct ComparedKind {
  std::string kind;
  Lane lane = Lane::compute;
  double measured = 0;
  std::optional<double> predicted{};
};
// In the order of lanes, then the longest first.
std::vector<ComparedKind> compare_kinds(const std::vector<RankProfile>& ranks, const Plan& plan,
                                        const std::optional<ExpectedStep>& expected);

// How much of the time of collectives and messages the same rank computed; nothing when there were none.
std::optional<double> overlap(const RankProfile& profile);

// A table for people, and the same with each rank's memory for programs.
std::string comparison_text(const std::vector<RankProfile>& ranks, const Plan& plan,
                            const std::optional<ExpectedStep>& expected);
OrderedJson comparison_json(const std::vector<RankProfile>& ranks, const Plan& plan,
                            const std::optional<ExpectedStep>& expected);

// For Perfetto: a process for each rank, with a track for its steps and one for each lane. Ranks whose instructions would make more
// than kMostTraced are left out. `comparison` stands in it beside the events, under the key "profile".
std::string profile_trace(const std::vector<RankProfile>& ranks, const OrderedJson& comparison);

}  // namespace optimus
