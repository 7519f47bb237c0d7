// Candidate: one point of the space that is searched, a grid pp x dp x cp x tp of equal stages with one strategy; and the numbers
// that each of its axes may have. What a candidate leaves out (uneven stages, layers that differ, several pipelines, other
// placements) is added to the best of them by search/refine.h.
#pragma once

#include <string>
#include <vector>

#include "search/demand.h"

namespace optimus {

// How many layers of a stage are computed again in which way; in the order of the blocks: full first, none last.
struct StageLayers {
  int full = 0, selective = 0, none = 0;
  int total() const { return full + selective + none; }
  int of(RecomputeMode mode) const;
  // Of the layers [begin, begin + count) among these.
  StageLayers part(int begin, int count) const;
  bool operator==(const StageLayers&) const = default;
};
StageLayers layers_in(RecomputeMode mode, int count);

struct Candidate {
  int pp = 1, tp = 1, cp = 1, dp = 1;
  int chunks = 1, microbatch = 1;
  int zero = 0, shard_group = 0;
  bool sequence_parallel = false, offload = false;
  RecomputeMode recompute = RecomputeMode::none;
  bool is_fitted = false;  // recompute no more layers of each stage than memory demands, instead
  int spare = 2;           // fitted: thousandths of the memory that are left free, for what bounds leave out
  Schedule schedule = Schedule::one_f_one_b;
  bool operator==(const Candidate&) const = default;

  int width() const { return tp * cp * dp; }  // devices of a stage
  int num_devices() const { return pp * width(); }
};

Plan plan_of(const Demand& demand, const Candidate& candidate);
// With stages of other layers than the even ones: [stage].
Plan plan_of(const Demand& demand, const Candidate& candidate, const std::vector<StageLayers>& layers);
// Layers of part i when they are dealt evenly: more to the first.
int dealt(std::int64_t layers, int parts, int i);
LayerStrategy strategy_of(const Candidate& candidate);
// How many micro-batches a pipeline has, and what the last one takes of the usual one's time.
struct MicrobatchCount {
  int number = 1;
  double last_size = 1;
  double total() const { return number - 1 + last_size; }
};
MicrobatchCount count_microbatches(std::int64_t batch, int microbatch, int dp);

// What each axis may have, ascending, constraints applied. An empty list: constraints exclude everything there is.
std::vector<int> tensor_choices(const Demand& demand, int num_devices);
std::vector<int> context_choices(const Demand& demand, int num_devices);
std::vector<int> pipeline_choices(const Demand& demand, int num_devices);
// Of a sequence cut into cp parts.
std::vector<int> microbatch_choices(const Demand& demand, int cp);
std::vector<RecomputeMode> recompute_choices(const Demand& demand);
// Of a grid whose other axes take num_devices / dp: the most that batch and devices allow; smaller ones where these cost less.
std::vector<int> data_choices(const Demand& demand, int most_dp, int microbatch);

struct ScheduleChoice {
  Schedule schedule = Schedule::one_f_one_b;
  int chunks = 1;
};
std::vector<ScheduleChoice> schedule_choices(const Demand& demand, int pp);

struct ZeroChoice {
  int zero = 0, shard_group = 0;
};
// `data`: devices that hold the same part (dp x cp); `in_domain`: those of them that a fast domain holds.
std::vector<ZeroChoice> zero_choices(const Demand& demand, int data, int in_domain);

}  // namespace optimus
