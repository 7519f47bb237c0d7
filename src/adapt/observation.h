// Measurements of one training step: by one rank (RankStep), and of all ranks together (Observation).
//
// A rank sums the times of its instructions by kind. Observations of parts of the run are merged in any tree
// and any order. The result is the same except for the last digits of sums. The size of an observation grows
// with the plan's stages, not with its ranks: for each group of equal ranks (a stage of a pipeline) and each
// measure it stores the smallest value, a histogram for the median, and the few largest values with their
// ranks. Plain data; the input of detectors (adapt/detect.h).
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

// The communication channels of a rank: the next and the previous stage, its tensor (and context) parallel
// group, and its data-parallel group.
enum class Channel { next, previous, tensor, data };
inline constexpr std::size_t kChannels = 4;

struct LinkTime {
  double bytes = 0, seconds = 0;  // only time during which all members are ready
  bool operator==(const LinkTime&) const = default;
};

// Kinds of blocks; the cost model's error differs between them.
enum class BlockRole { embedding, layer, head };
inline constexpr std::size_t kBlockRoles = 3;

// The measured and the predicted seconds of the computation of one kind of block.
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
  // Cost of this rank's samples relative to the usual cost, estimated from their lengths.
  double relative_work = 1;
  std::array<WorkTime, kWorkKinds> kinds{};
  std::array<LinkTime, kChannels> links{};
  BlockTimes rates{};
  LengthSum lengths{};
  Bytes memory{}, memory_limit{};
  // Reported by a GPU: its highest clock divided by the present one (0 if unknown), and the fraction of
  // time in which it was idle.
  double clock = 0, idle = 0;

  double compute_seconds() const;  // forward, recompute, backward
};

// Quantities that are compared between ranks; larger is slower. `compute` is seconds for the usual work;
// channels are seconds per byte.
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

// The values of one measure over a group's ranks. Values are at least 0.
struct Spread {
  static constexpr std::size_t kLargest = 16;  // hosts have fewer devices than this
  std::int64_t count = 0;
  double sum = 0;
  RankValue smallest{};
  std::vector<RankValue> largest{};  // descending; equal values by rank
  // Histogram, 64 buckets per factor of two; values below 1e-12 are in the lowest bucket.
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
// Throws UserError if the text has another format, if lists are longer than merging can make them, or if
// numbers are negative or not finite.
Observation parse_observation(std::string_view text, const std::string& source);

}  // namespace optimus
