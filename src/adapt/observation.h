// What was seen of one training step: by one rank (RankStep), and of all ranks together (Observation).
//
// A rank adds up its instructions by kind. Observations of parts of the run are merged in any tree, in any order, with the same result
// bit for bit but for the last digits of sums; an observation grows with the plan's stages, never with its ranks: of each group
// of equal ranks (a stage of a pipeline) and each measure it keeps the smallest, a histogram for the median, and the largest few, with
// who had them. Plain data: what detectors (adapt/detect.h) and policies see, and what a learned policy is trained on.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/units.h"

namespace optimus {

enum class WorkKind {
  load_batch,
  forward,
  recompute,
  backward,
  optimizer,
  tensor,
  gather,
  reduce,
  transfer,
  gate
};
inline constexpr std::size_t kWorkKinds = 10;

struct WorkTime {
  std::int64_t count = 0;
  double seconds = 0;  // from begin to end, without `waiting`
  double waiting = 0;  // until others were there, as far as that is known
  bool operator==(const WorkTime&) const = default;
};

// Whom a rank speaks to: the stages beside its own, its tensor (and context) group, those that hold the same layers.
enum class Channel { next, previous, tensor, data };
inline constexpr std::size_t kChannels = 4;

struct LinkTime {
  double bytes = 0, seconds = 0;  // seconds: while both sides were there
  bool operator==(const LinkTime&) const = default;
};

// Blocks that the cost model may be wrong about in different ways.
enum class BlockRole { embedding, layer, head };
inline constexpr std::size_t kBlockRoles = 3;

// What computing took, and what the cost model says of the same.
struct Rate {
  double seconds = 0, predicted = 0;
  bool operator==(const Rate&) const = default;
};
using BlockRates = std::array<Rate, kBlockRoles>;

struct LengthSum {
  std::int64_t sequences = 0, tokens = 0, longest = 0;
  double squares = 0;  // of lengths: what attention takes
  bool operator==(const LengthSum&) const = default;
};

struct RankStep {
  int rank = 0;        // as the plan names it
  int group = 0;       // of equal ranks: the stage, counted through all pipelines
  double seconds = 0;  // of the step
  double data_wait = 0;
  double work = 1;  // what its samples cost, of the usual: by their lengths
  std::array<WorkTime, kWorkKinds> kinds{};
  std::array<LinkTime, kChannels> links{};
  BlockRates rates{};
  LengthSum lengths{};
  Bytes memory{}, memory_limit{};
  // What a GPU says of itself: its highest clock over the present one (0: nobody knows), and the part of the time in which it was idle.
  double clock = 0, idle = 0;

  double compute_seconds() const;  // forward, recompute, backward
};

// What is compared between ranks: the larger, the slower. compute: seconds, of usual work. Channels: seconds a byte.
enum class Measure {
  compute,
  optimizer,
  host,
  waiting,
  data_wait,
  work,
  memory,
  clock,
  idle,
  next,
  previous,
  tensor,
  data
};
inline constexpr std::size_t kMeasures = 13;
inline Measure measure_of(Channel channel) {
  return static_cast<Measure>(static_cast<int>(Measure::next) + static_cast<int>(channel));
}
std::string text(Measure measure);

struct Seen {
  double value = 0;
  int rank = 0;
  bool operator==(const Seen&) const = default;
};

// The values of one measure over a group's ranks. Values are at least 0.
struct Spread {
  static constexpr std::size_t kLargest = 16;  // a host's devices, and some more
  std::int64_t count = 0;
  double sum = 0;
  Seen smallest{};
  std::vector<Seen> largest{};            // the first is the largest; of equal ones the lower rank first
  std::map<int, std::int64_t> buckets{};  // of a 64th of an octave each; zero and below 1e-12 in the lowest

  void add(double value, int rank);
  void merge(const Spread& other);
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
  double median() const;  // the lower one; within half a percent
  bool operator==(const Spread&) const = default;
};

struct GroupStep {
  std::array<Spread, kMeasures> spreads{};
  const Spread& of(Measure measure) const { return spreads[static_cast<std::size_t>(measure)]; }
  bool operator==(const GroupStep&) const = default;
};

struct Observation {
  std::int64_t step = 0;
  double seconds = 0;  // of the step: of the slowest rank
  std::int64_t num_ranks = 0;
  LengthSum lengths{};
  BlockRates rates{};                 // of all ranks together
  Bytes memory_limit{};               // the least of all ranks; 0: none is known
  std::map<int, GroupStep> groups{};  // by number

  void add(const RankStep& rank);
  void merge(const Observation& other);  // of other ranks in the same step
  bool operator==(const Observation&) const = default;
};

OrderedJson to_json(const Observation& observation);
// Throws UserError: another format, sizes beyond what merging makes, numbers that are negative or not finite.
Observation parse_observation(std::string_view text, const std::string& source);

}  // namespace optimus
