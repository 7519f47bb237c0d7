// Candidate: one point of the search space, which is a grid of pp x dp x cp x tp equal stages with one
// strategy; and the permitted values of each axis. Plans outside this space (uneven stages, layers with
// different strategies, several pipelines, other placements) are derived from the best candidates by
// search/refine.h.
#pragma once

#include <string>
#include <vector>

#include "search/demand.h"

namespace optimus {

// The number of layers of a stage in each recompute mode. Layers are ordered by mode: full first, none
// last.
struct StageLayers {
  int full = 0, selective = 0, none = 0;
  int total() const { return full + selective + none; }
  int of(RecomputeMode mode) const;
  // The recompute modes of layers [begin, begin + count) of these layers.
  StageLayers part(int begin, int count) const;
  StageLayers& operator+=(const StageLayers& other);
  bool operator==(const StageLayers&) const = default;
};
StageLayers uniform_layers(RecomputeMode mode, int count);

struct Candidate {
  int pp = 1, tp = 1, cp = 1, dp = 1, ep = 1;
  int chunks = 1, microbatch = 1;
  int zero = 0, shard_group = 0;
  int copy_distance = 0;  // as Plan::copy_distance
  bool sequence_parallel = false, offload = false;
  RecomputeMode recompute = RecomputeMode::none;
  // Recomputes only as many layers of each stage as memory requires; overrides `recompute`.
  bool is_fitted = false;
  // if fitted: thousandths of the memory that are left free for costs that bounds omit
  int memory_margin = 2;
  Schedule schedule = Schedule::one_f_one_b;
  bool operator==(const Candidate&) const = default;

  int width() const { return tp * cp * dp; }  // devices per stage
  int num_devices() const { return pp * width(); }
};

// The number of devices that share one copy of the state; 1 without sharding.
int num_shards(const Candidate& candidate);
// The number of devices that share one copy of an expert's state.
int num_expert_shards(const Candidate& candidate);

Plan plan_of(const Demand& demand, const Candidate& candidate);
// The plan of a candidate with explicit layers for each stage. parts[chunk x pp + stage]: number of layers
// of each chunk; empty: even chunks.
Plan plan_of(const Demand& demand, const Candidate& candidate, const std::vector<StageLayers>& layers,
             const std::vector<int>& parts = {});
// The number of layers of part `i` if `layers` are split evenly; the first parts have one more if there is
// a remainder.
int split_layers(std::int64_t layers, int parts, int i);
// The index of the first layer of part `i`.
int first_split_layer(std::int64_t layers, int parts, int i);
LayerStrategy strategy_of(const Candidate& candidate);
// The number of micro-batches of a pipeline, and the duration of the last one relative to the other ones.
struct MicrobatchCount {
  int number = 1;
  double last_size = 1;
  double total() const { return number - 1 + last_size; }
};
MicrobatchCount count_microbatches(std::int64_t batch, int microbatch, int dp);

// The permitted values of each axis, ascending, after applying the constraints. Empty if the constraints
// exclude every value.
std::vector<int> tensor_choices(const Demand& demand, int num_devices);
// The largest tensor-parallel size: each part needs at least one head, one MLP column and one vocabulary
// entry.
std::int64_t max_tensor_parts(const ModelSpec& model);
std::vector<int> context_choices(const Demand& demand, int num_devices);
// Expert-parallel sizes; 1 for models without experts.
std::vector<int> expert_choices(const Demand& demand, int num_devices);
std::vector<int> pipeline_choices(const Demand& demand, int num_devices);
// For sequences that are split into `cp` parts.
std::vector<int> microbatch_choices(const Demand& demand, int cp);
std::vector<RecomputeMode> recompute_choices(const Demand& demand);
// Numbers of replicas, all multiples of `step`: the largest number that batch and devices allow, and
// smaller numbers where they can cost less.
std::vector<int> data_choices(const Demand& demand, int max_dp, int microbatch, int step = 1);
// The number of replicas must be a multiple of this, so that ep divides the number of devices in a stage.
int replica_multiple(const Candidate& candidate);

struct ScheduleChoice {
  Schedule schedule = Schedule::one_f_one_b;
  int chunks = 1;
};
std::vector<ScheduleChoice> schedule_choices(const Demand& demand, int pp);

struct ZeroChoice {
  int zero = 0, shard_group = 0, copy_distance = 0;
};
// The ZeRO stages of a candidate whose other axes are set. `in_domain`: number of devices in one fast
// domain that have the same parameters.
std::vector<ZeroChoice> zero_choices(const Demand& demand, const Candidate& candidate, int in_domain);
// Whether any state has copies that could be sharded: over replicas, over context-parallel ranks, or, for
// experts, over tensor-parallel ranks.
bool has_copies(const Demand& demand, const Candidate& candidate);

// The number of layers without experts among layers [begin, end) of a mixture-of-experts model that has
// layers of both kinds; 0 for other models.
int num_dense(const ModelSpec& model, int begin, int end);
// The layers without experts by recompute mode, for `layers` that begin with layer `first`.
StageLayers count_dense(const ModelSpec& model, int first, const StageLayers& layers);
bool has_two_kinds_of_layers(const ModelSpec& model);

}  // namespace optimus
