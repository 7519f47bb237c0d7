// The step of a plan on a modelled cluster: how long it takes, where the time goes, what each stage holds in memory.
//
//   StepSimulator simulator({.plan = plan, .model = model, .cluster = cluster, .map = map, .software = our_software()});
//   const StepPrediction step = simulator.run(fitted_constants());
//
// It runs the same programs as the engine. Equal devices are looked at once: one of each stage, and of stages that are
// alike one; so the time it takes grows with the slots of one pipeline, not with devices. Building a simulator compiles
// programs; running it again with other constants is cheap.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "cost/memory_cost.h"
#include "simulate/pipeline.h"

namespace optimus {

struct StagePrediction {
  int pipeline = 0, stage = 0;
  TimeSplit split;  // adds up to the step
  StageMemory memory;
};

struct StepPrediction {
  double seconds = 0;
  double tokens_per_second = 0;
  double mfu = 0;   // of the peak in the plan's precision
  TimeSplit split;  // mean over stages
  std::vector<StagePrediction> stages;
  Bytes memory;                            // of the fullest device
  std::vector<PipelineTimes> pipelines;    // slots in time
  std::vector<std::vector<Order>> orders;  // [pipeline][stage]: what the slots are
};

struct TracedInstruction {
  int pipeline = 0, stage = 0;
  Lane lane = Lane::compute;
  std::string name;  // "backward_weight layer 3 mlp, micro-batch 7"
  std::string kind;  // "backward_weight layer mlp"
  double start = 0, end = 0;
};

class StepSimulator {
 public:
  // The plan must be valid for the model, and the map must have its devices. What setup refers to must outlive this object.
  // Throws UserError for a plan of too many slots.
  explicit StepSimulator(const Setup& setup);
  // Slots and orders are many; who does not look at them need not keep them.
  StepPrediction run(const Constants& constants, bool keeps_slots = true) const;
  // Seconds of the step alone.
  double seconds(const Constants& constants) const;
  // Every instruction of one device of each stage in time; at most `most` of them, whole stages left out behind that.
  std::vector<TracedInstruction> instructions(const Constants& constants, std::size_t most) const;

 private:
  struct StageClass {
    Stage pattern;                    // devices left out, blocks counted from the chunk's first
    std::vector<int> block_patterns;  // of a mixture of experts, whose layers differ
    bool has_first = false, has_last = false;
    Device device;
    int place_in_domain = 0, width = 0, pipeline = 0;
    std::set<int> types;            // of its devices
    std::vector<int> first_blocks;  // [chunk], of the program
    Order order;
    std::unique_ptr<PricedProgram> program;
    std::vector<std::unique_ptr<PricedProgram>> others;  // of replicas on other types of devices
    double forward_bytes = 0, backward_bytes = 0;        // of a micro-batch, to the neighbours
  };
  struct Seen {                // one pipeline
    std::vector<int> classes;  // [stage]
    std::vector<Order> orders;
    std::vector<double> sizes;         // [micro-batch], of the usual one
    std::vector<Link> next, previous;  // [stage]
  };
  struct Clock;

  void see_pipeline(int number);
  int class_of(int pipeline, int stage);
  Clock time(const Constants& constants, bool keeps_slots) const;
  void trace_stage(const Clock& clock, int pipeline, int stage, const LaneTrace& lanes,
                   const Constants& constants, std::vector<TracedInstruction>& result) const;

  Setup setup_;
  std::shared_ptr<const ModelWork> work_;
  Plan short_plan_;  // at most two micro-batches in each pipeline
  std::vector<StageClass> classes_;
  std::vector<Seen> pipelines_;
  double num_nodes_ = 1;
};

}  // namespace optimus
