// Candidate: one point of the search space, which is a grid of pp x dp x cp x tp devices in equal stages with
// one strategy. This header also computes the permitted values of each axis. search/refine.h derives plans
// outside this space (uneven stages, layers with different strategies, several pipelines, other placements)
// from the best candidates.
#pragma once

#include <string>
#include <vector>

#include "search/demand.h"

namespace optimus {

// The number of layers of a stage in each recompute mode. Layers are ordered by mode, from full to none.
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
  int copy_distance = 0;  // see Plan::copy_distance
  bool sequence_parallel = false, offload = false;
  RecomputeMode recompute = RecomputeMode::none;
  // Whether each stage recomputes only as many layers as memory requires. Overrides `recompute`.
  bool is_fitted = false;
  // If fitted, the thousandths of the memory that stay free for costs that bounds omit.
  int memory_margin = 2;
  Schedule schedule = Schedule::one_f_one_b;
  bool operator==(const Candidate&) const = default;

  int width() const { return tp * cp * dp; }  // devices per stage
  int num_devices() const { return pp * width(); }
};

// The number of devices that share one copy of the state, or 1 without sharding.
int num_shards(const Candidate& candidate);
// The number of devices that share one copy of an expert's state.
int num_expert_shards(const Candidate& candidate);

Plan plan_of(const Demand& demand, const Candidate& candidate);
// The plan of a candidate with explicit layers for each stage. parts[chunk x pp + stage] is the number of
// layers in each chunk. If `parts` is empty, chunks are even.
Plan plan_of(const Demand& demand, const Candidate& candidate, const std::vector<StageLayers>& layers,
             const std::vector<int>& parts = {});
// The number of layers in part `i` if `layers` are split evenly. If there is a remainder, each of the first
// parts has one more layer.
int split_layers(std::int64_t layers, int parts, int i);
// The index of the first layer of part `i`.
int first_split_layer(std::int64_t layers, int parts, int i);
LayerStrategy strategy_of(const Candidate& candidate);
// The number of micro-batches of a pipeline, and the duration of the last micro-batch relative to the others.
struct MicrobatchCount {
  int number = 1;
  double last_size = 1;
  double total() const { return number - 1 + last_size; }
};
MicrobatchCount count_microbatches(std::int64_t batch, int microbatch, int dp);

// The permitted values of each axis in ascending order, after applying the constraints. Empty if the
// constraints exclude all values.
std::vector<int> tensor_choices(const Demand& demand, int num_devices);
// The largest tensor-parallel size. Each rank needs at least one head, one MLP column and one vocabulary
// entry.
std::int64_t max_tensor_parts(const ModelSpec& model);
std::vector<int> context_choices(const Demand& demand, int num_devices);
// The permitted expert-parallel sizes. Only 1 for models without experts.
std::vector<int> expert_choices(const Demand& demand, int num_devices);
std::vector<int> pipeline_choices(const Demand& demand, int num_devices);
// The permitted micro-batch sizes for context-parallel size `cp`.
std::vector<int> microbatch_choices(const Demand& demand, int cp);
std::vector<RecomputeMode> recompute_choices(const Demand& demand);
// The permitted numbers of replicas, all multiples of `step`: the largest number that batch and devices
// allow, and smaller numbers that can cost less.
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
// The ZeRO stages of a candidate whose other axes are set. `in_domain` is the number of devices in one fast
// domain that have the same parameters.
std::vector<ZeroChoice> zero_choices(const Demand& demand, const Candidate& candidate, int in_domain);
// Whether any state has copies that could be sharded: over replicas, over context-parallel ranks, or, for
// experts, over tensor-parallel ranks.
bool has_copies(const Demand& demand, const Candidate& candidate);

// The number of layers without experts among layers [begin, end) of a mixture-of-experts model that has
// layers of both kinds; 0 for other models.
int num_dense(const ModelSpec& model, int begin, int end);
// The number of layers without experts in each recompute mode, for `layers` starting at layer `first`.
StageLayers count_dense(const ModelSpec& model, int first, const StageLayers& layers);
bool has_two_kinds_of_layers(const ModelSpec& model);

}  // namespace optimus
