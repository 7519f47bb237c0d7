// Lower bounds on the step time and on the memory of a candidate, computed from the simulated costs of a few
// layers. A bound never exceeds the simulated value (tests check this on random problems) and is usually a
// few percent below it. Computing a bound takes microseconds, regardless of the number of devices.
//
// A stage cannot start before the first micro-batch has passed the preceding stages. It then processes all
// micro-batches. After its last backward pass, the preceding stages still have to run their last backward
// passes. The stage with the largest sum of these times bounds the pipeline. The bound then adds the
// reductions that no backward pass can hide, the step gate, the updates, and the part of the weight gathers
// that the next forward pass does not hide.
#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include "schedule/order.h"
#include "search/bound_cost.h"
#include "search/sample_cost.h"

namespace optimus {

struct Bound {
  double seconds = 0;
  // Total memory and memory limit of the process with the least headroom or the largest excess.
  double bytes = 0, limit = 0;
  bool fits() const { return bytes <= limit; }
};

// Returns the candidate with its state sharded as far as the constraints allow. Of all variants of the
// candidate, this one needs the least memory.
Candidate max_sharded(const Demand& demand, Candidate candidate);
// Pseudo ZeRO stages, used only for bounds. Costs computed with them never exceed the costs of a real ZeRO
// stage. kZeroWithoutTraffic assumes that replicas do not communicate. kZeroWithoutGathers assumes that all
// state is sharded and no gathered copies exist.
inline constexpr int kZeroWithoutTraffic = -1, kZeroWithoutGathers = 4;
// Lower bound on the number of micro-batches whose activations a stage saves at the same time. If a stage has
// several chunks, each chunk counts as a fraction of a micro-batch.
double min_in_flight(const Candidate& candidate, int stage, int microbatches);
// The memory that a device may use: the smaller of `available` and --max-memory.
Bytes memory_limit(const Demand& demand, Bytes available);
// The number of communicators in a process. Each communicator takes memory.
int num_communicators(const Candidate& candidate);
// Total memory of a process with `live` bytes of tensors, of which `moving` bytes change during a step. On
// GPUs, this includes the device context.
double process_bytes(const Demand& demand, const DeviceType& type, double live, double moving,
                     int communicators);

class BoundModel {
 public:
  BoundModel(const Demand& demand, const ClusterView& cluster_view);

  // The bound of one candidate. Stops early when the time bound reaches `cutoff_seconds`. For a candidate
  // that does not fit, only `bytes` is meaningful.
  Bound bound(const Candidate& candidate, double cutoff_seconds = 1e300);
  // Returns a tighter time bound if this is inexpensive to compute. Runs the slots of all stages through the
  // simulator's pipeline model, using the lower bound of each slot as its time.
  double tighten_bound(const Candidate& candidate, const Bound& bound);
  // Bound over all schedules, ZeRO stages and placements of the state (shard groups, copies, offloading). The
  // other axes of the candidate must be set. Memory is not computed if the time bound reaches
  // `cutoff_seconds`.
  Bound bound_any_schedule(const Candidate& candidate, double cutoff_seconds = 1e300);
  // Time bound over all ZeRO stages, which assumes that communication between replicas takes no time.
  double bound_any_zero(Candidate candidate);
  // Bound over all numbers of stages and replicas and all recompute modes, in the unit of the goal. The
  // candidate's tp, cp, sequence_parallel and microbatch must be set.
  double bound_any_shape(const Candidate& candidate);
  // The recompute modes of the `layers` layers of a stage, with as little recomputation as memory allows. If
  // nothing fits, all layers are fully recomputed.
  StageLayers fitted_layers(const Candidate& candidate, int stage, int layers);
  // Calls fitted_layers() for all stages, with layers distributed evenly.
  std::vector<StageLayers> layers_of(const Candidate& candidate);
  // Seconds that one micro-batch keeps a stage busy, and whether the stage fits into memory.
  struct StageWork {
    double forward = 0, backward = 0;
    bool fits = false;
  };
  StageWork work_of(const Candidate& candidate, int stage, const StageLayers& layers);
  int num_sample_costs() const { return sample_costs_.num_computed(); }

 private:
  // Seconds taken by the collectives among the devices that store the same parameters.
  struct Traffic {
    // gradients: reduce-scatter to shards, and all-reduce over the replicas of each shard
    SlotCost shard, replica;
    SlotCost gather;  // weights: all-gather from shards
    double reduce(const BlockCounts& block_counts) const {
      return shard.of(block_counts) + replica.of(block_counts);
    }
  };
  // Memory of a stage as a function of its layers, in bytes.
  struct MemoryTerms {
    struct Layer {
      double state = 0, gathered = 0;
      double saved_activations[3] = {}, transient[3] = {};  // [recompute mode]
    };
    double fixed = 0;
    Layer layer, dense;  // bytes of one layer
    double transient_of_ends = 0,
           gathered_at_ends = 0;  // for the embedding and the head (the ends of the model)
    // Gathered buffers of the embedding or the head together with adjacent layers, if the stage has any.
    double gathered_with_ends = 0;
    // `dense` contains the layers of the second kind among `layers`.
    double total_bytes(const StageLayers& layers, const StageLayers& dense) const;
  };
  // Buffers of a sharded block: its gathered weights, its unreduced gradient, and the exchange buffer with
  // the shards of all members. `gathered` is the size of weights that software other than Optimus gathers.
  struct ExchangeBuffers {
    double weights = 0, gradient = 0, exchange = 0, gathered = 0;
  };
  struct EndTerms {
    double state = 0, saved_activations = 0, transient = 0;
    ExchangeBuffers exchange_buffers;
  };
  struct StageTerms {
    MemoryTerms of_layers;  // for one micro-batch in flight
    EndTerms embedding, head;
    ExchangeBuffers min_layer;
  };
  StageTerms terms_of_any_stage(const Candidate& c, int kind, bool all_modes);
  void add_exchange_memory(MemoryTerms& terms, const Candidate& c, int stage, double in_flight) const;
  // The layers of the second kind among a stage's layers, by recompute mode. The counts are zero if the model
  // has one kind of layers.
  StageLayers dense_of(const Candidate& c, int stage, const StageLayers& layers) const;
  BlockCounts block_counts_of(const Candidate& c, int stage, const StageLayers& layers) const;
  // The smallest and largest number of layers of the second kind in the stage, over all permitted numbers
  // of chunks.
  std::pair<int, int> min_and_max_dense(const Candidate& c, int stage) const;
  // The sample cost of one candidate on one kind of device in one recompute mode. It is computed on demand.
  const SampleCost& sample_cost(int kind, const Candidate& c, RecomputeMode mode);
  const Traffic& traffic_of(int kind, const Candidate& c, const SampleCost& sample_cost);
  ChunkCost chunk_cost(const Candidate& c, int stage, int chunk, const StageLayers& layers);
  StageCost stage_cost(const Candidate& c, int stage, const StageLayers& layers, bool has_message = false);
  double seconds_of_shape(const Candidate& shape, int stage, double recompute_seconds);
  std::vector<StageCost> stage_costs(const Candidate& c, const std::vector<StageLayers>& layers);
  bool equals_previous_stage(const Candidate& c, const std::vector<StageLayers>& layers, int stage) const;
  double update_time(const Candidate& c, const std::vector<StageCost>& stages) const;
  double exposed_reduction(const Candidate& c, const StageCost& stage) const;
  double last_gradient_time(const Candidate& c, const std::vector<StageCost>& stages) const;
  double optimizer_seconds(const Candidate& c, const SampleCost& sample_cost,
                           const BlockCounts& block_counts) const;
  double update_seconds(const Candidate& c, const StageCost& stage, double gate) const;
  MemoryTerms memory_terms(const Candidate& c, int stage, double in_flight, bool all_modes);
  void update_memory_bound(Bound& bound, const Candidate& c, int stage, const StageLayers& layers,
                           double in_flight);
  double limit_of(const Candidate& c, int stage) const;
  int kind_of_stage(const Candidate& c, int stage) const;
  double message_seconds(const Candidate& c, int stage, const SampleCost& sample_cost) const;

  const Demand& demand_;
  const ClusterView& cluster_view_;
  SampleCosts sample_costs_;
  LinkCost links_;
  const bool has_two_kinds_;  // whether the model has two kinds of layers
  // Stages of the shape being bounded that differ from their adjacent stages.
  std::vector<int> distinct_stages_;
  StageTerms last_terms_;
  Candidate terms_candidate_;
  int terms_kind_ = -1;
  bool terms_have_all_modes_ = false;
  // Cache: slot orders of all stages of the pipelines timed most recently.
  struct KnownOrders {
    Schedule schedule = Schedule::one_f_one_b;
    int pp = 0, microbatches = 0, chunks = 0;
    std::vector<Order> orders;
  };
  const std::vector<Order>& orders_of(const Candidate& c, int microbatches);
  std::vector<KnownOrders> known_orders_;
  std::map<std::tuple<int, int, int, int, int, int>, Traffic> traffic_;
  std::tuple<int, int, int, int, int, int> last_key_{};
  const Traffic* last_traffic_ = nullptr;
  // Cache of the last request, because most requests repeat it. last_sample_costs_: [recompute mode].
  int last_kind_ = -1;
  Candidate last_candidate_;
  const SampleCost* last_sample_costs_[3] = {};
};

}  // namespace optimus
