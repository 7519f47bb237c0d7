// Bounds: the least seconds and bytes that a candidate can have, from a few priced layers; never above what the simulator gives
// for it (tests hold them to that on random problems), mostly a few percent below. Costs microseconds; nothing grows with devices.
//
// A stage cannot begin before the first micro-batch has passed the stages before it, works through all micro-batches, and behind
// its last backward the stages before it still have theirs; whichever stage makes that longest bounds the pipeline. Then come
// reductions that no backward is left to hide, the gate, updates, and gathers that the next forward does not hide.
#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include "schedule/order.h"
#include "search/specimen.h"

namespace optimus {

struct Bound {
  double seconds = 0;
  // Of the stage that comes nearest to what its devices have, or exceeds it most; all that a process takes.
  double bytes = 0, limit = 0;
  bool fits() const { return bytes <= limit; }
};

// With its state sharded as far as it may be: needs least memory.
Candidate most_sharded(const Demand& demand, Candidate candidate);
// Pretended ZeRO stages. What is counted with them is never more than with a real one: nothing travels between replicas; all
// state is sharded, and nobody holds a gathered copy.
inline constexpr int kNoTraffic = -1, kNothingGathered = 4;
// Devices that share one copy of the state.
int num_shards(const Candidate& candidate);
// The same of a mixture's experts.
int num_expert_shards(const Candidate& candidate);
// Micro-batches whose activations a stage keeps, at least; chunks are counted as parts of one.
double least_in_flight(const Candidate& candidate, int stage, int microbatches);
// What a device may use: what it has, or what the user allows.
Bytes memory_limit(const Demand& demand, Bytes has);
// Communicators that a process has: each takes memory.
int num_communicators(const Candidate& candidate);
// What a process takes for these tensors. Processors have no context beside them.
double process_bytes(const Demand& demand, const DeviceType& type, double live, double moving,
                     int communicators);

class Bounder {
 public:
  Bounder(const Demand& demand, const Ground& ground);

  // With no less than `enough` seconds it is not worked out any further. Of one that does not fit only bytes are told.
  Bound of(const Candidate& candidate, double enough = 1e300);
  // Higher, where that costs little: the slots of all stages are put in time as the simulator does it, each with its bound.
  double tighter(const Candidate& candidate, const Bound& bound);
  // Of every schedule, ZeRO stage and placement of the state: the other axes must be set. With no less than `enough` seconds its
  // memory is not looked at.
  Bound of_any_schedule(const Candidate& candidate, double enough = 1e300);
  // Of every ZeRO stage: as if replicas had nothing to tell each other.
  double of_any_zero(Candidate candidate);
  // Of every number of stages and replicas, and every way of computing again: tp, cp, sequence_parallel, microbatch must be set.
  // In the goal's unit.
  double of_any_shape(const Candidate& candidate);
  // The layers of one stage, computed again as little as lets it fit; full where nothing does.
  StageLayers fitted(const Candidate& candidate, int stage, int layers);
  // Of all stages, dealt evenly.
  std::vector<StageLayers> layers_of(const Candidate& candidate);
  // Seconds that one micro-batch keeps a stage busy, and whether its memory suffices.
  struct StageWork {
    double forward = 0, backward = 0;
    bool fits = false;
  };
  StageWork work_of(const Candidate& candidate, int stage, const StageLayers& layers);
  int num_specimens() const { return specimens_.num_made(); }

 private:
  // Seconds of collectives over the devices that hold the same part.
  struct Traffic {
    SlotCost shard, replica;  // gradients: to shards, and over their copies
    SlotCost gather;          // weights, from shards
    double reduce(const Held& held) const { return shard.of(held) + replica.of(held); }
  };
  // What memory a stage needs, by its layers.
  struct MemoryTerms {
    struct Layer {
      double state = 0, gathered = 0;
      double kept[3] = {}, brief[3] = {};  // [mode]
    };
    double fixed = 0;
    Layer layer, dense;                        // of each
    double brief_ends = 0, gathered_ends = 0;  // of the ends of the model
    double gathered_beside = 0;                // of an end and of layers, if there are any
    // dense: those of the layers that are of the other kind.
    double of(const StageLayers& layers, const StageLayers& dense) const;
  };
  // Whole weights and gradients of a sharded block, and shards of all members; what others have of it all is gathered.
  struct Moved {
    double weights = 0, gradient = 0, exchange = 0, gathered = 0;
  };
  struct EndTerms {
    double state = 0, kept = 0, brief = 0;
    Moved moved;
  };
  struct StageTerms {
    MemoryTerms of_layers;  // one micro-batch under way
    EndTerms embedding, head;
    Moved least_layer;
  };
  StageTerms terms_of_any_stage(const Candidate& c, int kind, bool all_modes);
  void see_moved(MemoryTerms& terms, const Candidate& c, int stage, double in_flight) const;
  // Numbers of a stage's layers that are of the other kind, where a model has two.
  StageLayers dense_of(const Candidate& c, int stage, const StageLayers& layers) const;
  Held held_by(const Candidate& c, int stage, const StageLayers& layers) const;
  // The fewest and the most that the stage has, however finely it is cut.
  std::pair<int, int> least_and_most_dense(const Candidate& c, int stage) const;
  struct StageCost;
  // Specimens of one candidate on one kind of device: [mode]; those that are not needed are not made.
  const Specimen& specimen(int kind, const Candidate& c, RecomputeMode mode);
  const Traffic& traffic(int kind, const Candidate& c, const Specimen& specimen);
  struct ChunkCost;
  ChunkCost chunk_cost(const Candidate& c, int stage, int chunk, const StageLayers& layers);
  StageCost stage_cost(const Candidate& c, int stage, const StageLayers& layers, bool has_message = false);
  double seconds_of_shape(const Candidate& shape, int stage, double again);
  std::vector<StageCost> stage_costs(const Candidate& c, const std::vector<StageLayers>& layers);
  bool is_as_before(const Candidate& c, const std::vector<StageLayers>& layers, int stage) const;
  double after_gate(const Candidate& c, const std::vector<StageCost>& stages) const;
  double unhidden(const Candidate& c, const StageCost& stage) const;
  double end_of(const Candidate& c, const std::vector<StageCost>& stages) const;
  double update_of(const Candidate& c, const Specimen& own, const Held& held) const;
  double update_seconds(const Candidate& c, const StageCost& stage, double gate) const;
  MemoryTerms memory_terms(const Candidate& c, int stage, double in_flight, bool all_modes);
  void see_memory(Bound& bound, const Candidate& c, int stage, const StageLayers& layers, double in_flight);
  double limit_of(const Candidate& c, int stage) const;
  int kind_of_stage(const Candidate& c, int stage) const;
  double message(const Candidate& c, int stage, const Specimen& specimen) const;

  const Demand& demand_;
  const Ground& ground_;
  Specimens specimens_;
  LinkCost links_;
  const bool has_two_kinds_;  // of layers
  std::vector<int> told_;     // of the shape that is looked at
  StageTerms last_terms_;
  Candidate terms_candidate_;
  int terms_kind_ = -1;
  bool terms_have_all_modes_ = false;
  // Orders of all stages, of pipelines that were put in time last.
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
  // Those asked for last are mostly asked for again.
  int last_kind_ = -1;
  Candidate last_;
  const Specimen* last_specimens_[3] = {};
};

}  // namespace optimus
