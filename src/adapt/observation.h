// Measurements of one training step, from one rank (RankStep) or from all ranks together (Observation).
//
// A rank sums the times of its instructions by kind. Observations of subsets of the ranks can be merged in
// any order with the same result, except for rounding errors in sums. The size of an observation grows with
// the number of stages, not of ranks. For each group of equal ranks (a stage of a pipeline) and each measure,
// it stores the smallest value, a histogram for the median, and the few largest values with their ranks.
// Plain data. Detectors use observations as input (adapt/detect.h).
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
  double seconds = 0;  // excludes `waiting`
  double waiting = 0;  // for other ranks, as far as it can be measured
  bool operator==(const WorkTime&) const = default;
};

// The communication channels of a rank: the next and the previous stage, the tensor- and context-parallel
// group, and the data-parallel group.
enum class Channel { next, previous, tensor, data };
inline constexpr std::size_t kChannels = 4;

struct LinkTime {
  double bytes = 0, seconds = 0;  // only time during which all members are ready
  bool operator==(const LinkTime&) const = default;
};

// Kinds of blocks. They are distinguished because the error of the cost model differs between them.
enum class BlockRole { embedding, layer, head };
inline constexpr std::size_t kBlockRoles = 3;

// The measured and the predicted compute time of one kind of block, in seconds.
struct BlockTime {
  double seconds = 0, predicted = 0;
  bool operator==(const BlockTime&) const = default;
};
using BlockTimes = std::array<BlockTime, kBlockRoles>;

struct LengthSum {
  std::int64_t sequences = 0, tokens = 0, longest = 0;
  double squares = 0;  // sum of squared lengths; the cost of attention is proportional to it
  bool operator==(const LengthSum&) const = default;
};

struct RankStep {
  int rank = 0;        // the device's index in the plan
  int group = 0;       // index of the stage; the stages of all pipelines are numbered consecutively
  double seconds = 0;  // of the step
  double data_wait = 0;
  // Cost of this rank's samples relative to the usual cost, estimated from the sequence lengths.
  double relative_work = 1;
  std::array<WorkTime, kWorkKinds> kinds{};
  std::array<LinkTime, kChannels> links{};
  BlockTimes rates{};
  LengthSum lengths{};
  Bytes memory{}, memory_limit{};
  // Reported by a GPU: its maximum clock divided by its current clock (0 if unknown), and the fraction of
  // time during which it was idle.
  double clock = 0, idle = 0;

  double compute_seconds() const;  // forward, recompute, backward
};

// Quantities that are compared between ranks; larger values are slower. `compute` is in seconds for the usual
// amount of work. Channels are in seconds per byte.
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

struct RankValue {
  double value = 0;
  int rank = 0;
  bool operator==(const RankValue&) const = default;
};

// The distribution of one measure over the ranks of a group. Values are non-negative.
struct Spread {
  static constexpr std::size_t kLargest = 16;  // hosts have fewer devices than this
  std::int64_t count = 0;
  double sum = 0;
  RankValue smallest{};
  std::vector<RankValue> largest{};  // descending; equal values by rank
  // A histogram with 64 buckets per factor of two. Values below 1e-12 are in the lowest bucket.
  std::map<int, std::int64_t> buckets{};

  void add(double value, int rank);
  void merge(const Spread& other);
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
  double median() const;  // the lower median, accurate to half a percent
  bool operator==(const Spread&) const = default;
};

struct GroupStep {
  std::array<Spread, kMeasures> spreads{};
  const Spread& of(Measure measure) const { return spreads[static_cast<std::size_t>(measure)]; }
  bool operator==(const GroupStep&) const = default;
};

struct Observation {
  std::int64_t step = 0;
  double seconds = 0;  // of the step, by the slowest rank
  std::int64_t num_ranks = 0;
  LengthSum lengths{};
  BlockTimes rates{};                 // sums over all ranks
  Bytes memory_limit{};               // the smallest of all ranks; 0 if unknown
  std::map<int, GroupStep> groups{};  // by group index

  void add(const RankStep& rank);
  void merge(const Observation& other);  // of other ranks in the same step
  bool operator==(const Observation&) const = default;
};

OrderedJson to_json(const Observation& observation);
// Throws UserError if the format is wrong, if a list is longer than to_json() can write, or if a number is
// negative or not finite.
Observation parse_observation(std::string_view text, const std::string& source);

}  // namespace optimus
