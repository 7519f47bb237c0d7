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
  StageLayers& operator+=(const StageLayers& other);
  bool operator==(const StageLayers&) const = default;
};
StageLayers layers_in(RecomputeMode mode, int count);

struct Candidate {
  int pp = 1, tp = 1, cp = 1, dp = 1, ep = 1;
  int chunks = 1, microbatch = 1;
  int zero = 0, shard_group = 0;
  int buddy = 0;  // as in Plan
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
// With stages of other layers than the even ones: [stage]; parts: how many of them each chunk has, [chunk x pp + stage], where they
// are not even.
Plan plan_of(const Demand& demand, const Candidate& candidate, const std::vector<StageLayers>& layers,
             const std::vector<int>& parts = {});
// Layers of part i when they are dealt evenly: more to the first.
int dealt(std::int64_t layers, int parts, int i);
// The first of them.
int first_dealt(std::int64_t layers, int parts, int i);
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
// Each needs a head, a column of the mlp and a word.
std::int64_t most_tensor_parts(const ModelSpec& model);
std::vector<int> context_choices(const Demand& demand, int num_devices);
// Into how many parts the experts of a mixture are dealt; 1 for other models.
std::vector<int> expert_choices(const Demand& demand, int num_devices);
std::vector<int> pipeline_choices(const Demand& demand, int num_devices);
// Of a sequence cut into cp parts.
std::vector<int> microbatch_choices(const Demand& demand, int cp);
std::vector<RecomputeMode> recompute_choices(const Demand& demand);
// Of a grid whose other axes take num_devices / dp: the most that batch and devices allow; smaller ones where these cost less.
// All are multiples of `step`.
std::vector<int> data_choices(const Demand& demand, int most_dp, int microbatch, int step = 1);
// Replicas come in such numbers that the devices of a stage can be cut into ep parts.
int replica_step(const Candidate& candidate);

struct ScheduleChoice {
  Schedule schedule = Schedule::one_f_one_b;
  int chunks = 1;
};
std::vector<ScheduleChoice> schedule_choices(const Demand& demand, int pp);

struct ZeroChoice {
  int zero = 0, shard_group = 0, buddy = 0;
};
// Of a candidate with everything else set; `in_domain`: how many of the devices that hold the same part a fast domain holds.
std::vector<ZeroChoice> zero_choices(const Demand& demand, const Candidate& candidate, int in_domain);
// Whether anything has a copy that could be sharded: replicas, context parts, experts that tensor parts hold each.
bool has_copies(const Demand& demand, const Candidate& candidate);

// Layers [begin, end) of a mixture that have no experts, unlike its others; 0 in other models, whose layers are all alike.
int num_dense(const ModelSpec& model, int begin, int end);
// Of these layers of one run that begins with layer `first`.
StageLayers dense_among(const ModelSpec& model, int first, const StageLayers& layers);
bool has_two_kinds_of_layers(const ModelSpec& model);

}  // namespace optimus
