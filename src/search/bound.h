// Bounds: the least seconds and bytes that a candidate can have, from a few priced layers; never above what the simulator gives
// for it (tests hold them to that on random problems), mostly a few percent below. Costs microseconds; nothing grows with devices.
//
// A stage cannot begin before the first micro-batch has passed the stages before it, works through all micro-batches, and behind
// its last backward the stages before it still have theirs; whichever stage makes that longest bounds the pipeline. Then come
// reductions that no backward is left to hide, the gate, updates, and gathers that the next forward does not hide.
#pragma once

#include <tuple>
#include <vector>

#include "search/probe.h"

namespace optimus {

struct Bound {
  double seconds = 0;
  // Of the stage that comes nearest to what its devices have, or exceeds it most; all that a process takes.
  double bytes = 0, limit = 0;
  bool fits() const { return bytes <= limit; }
};

// With its state sharded as far as it may be: needs least memory.
Candidate most_sharded(const Demand& demand, Candidate candidate);
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

  Bound of(const Candidate& candidate);
  // Of every schedule, ZeRO stage and placement of the state: the other axes must be set.
  Bound of_any_schedule(const Candidate& candidate);
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
  int num_probes() const { return probes_.num_made(); }

 private:
  // Seconds of collectives over the devices that hold the same part.
  struct Traffic {
    double reduce_layer = 0, reduce_embedding = 0, reduce_head = 0;  // gradients, to shards and over copies
    double gather_layer = 0, gather_embedding = 0, gather_head = 0;  // weights, from shards
  };
  struct StageCost;
  const Traffic& traffic(int kind, const Candidate& c, const Probe& probe);
  StageCost stage_cost(const Candidate& c, int stage, const StageLayers& layers);
  double end_of(const Candidate& c, const std::vector<StageCost>& stages) const;
  double update_seconds(const Candidate& c, const StageCost& stage) const;
  double stage_bytes(const Candidate& c, int stage, const StageLayers& layers, double in_flight);
  void see_memory(Bound& bound, const Candidate& c, int stage, const StageLayers& layers, double in_flight);
  double limit_of(const Candidate& c, int stage) const;
  const std::vector<int>& kinds_of_stages(const Candidate& c);
  double message(const Candidate& c, int stage, const Probe& probe) const;

  const Demand& demand_;
  const Ground& ground_;
  Probes probes_;
  LinkCost links_;
  std::map<std::tuple<int, int, int, int>, Traffic> traffic_;
  std::map<std::pair<int, int>, std::vector<int>> kinds_;
};

}  // namespace optimus
