// Simulates one step of a plan on a modelled cluster. The results are the duration of the step, a breakdown
// of its time, and the memory of each stage.
//
//   StepSimulator simulator(
//       {.plan = plan, .model = model, .cluster = cluster, .map = map, .software = optimus_software()});
//   const StepPrediction step = simulator.run(fitted_constants());
//
// The simulator executes the same programs as the engine. Equal devices are simulated once: one device per
// stage, and one stage per class of equal stages. Therefore the running time grows with the number of slots
// in one pipeline, not with the number of devices. Constructing a simulator compiles programs. Running it
// again with different constants is inexpensive.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "cost/memory_cost.h"
#include "simulate/pipeline.h"
#include "simulate/step_times.h"

namespace optimus {

struct StagePrediction {
  int pipeline = 0, stage = 0;
  TimeSplit split;  // adds up to the step time
  StageMemory memory;
};

struct StepPrediction {
  double seconds = 0;
  double tokens_per_second = 0;
  double mfu = 0;   // model FLOP/s relative to the devices' peak in the plan's precision
  TimeSplit split;  // mean over stages
  std::vector<StagePrediction> stages;
  Bytes memory;                            // memory of the fullest device
  std::vector<PipelineTimes> pipelines;    // times of all slots in each pipeline
  std::vector<std::vector<Order>> orders;  // [pipeline][stage]: the slots
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
  // The plan must be valid for the model, and the map must contain its devices. Everything that `setup`
  // refers to must outlive this object. Throws UserError for a plan with too many slots.
  explicit StepSimulator(const Setup& setup);
  // If `stores_slots` is false, the result omits slots and orders, which may be large.
  StepPrediction run(const Constants& constants, bool stores_slots = true) const;
  // Predicts only the step time, which is faster than run().
  double seconds(const Constants& constants) const;
  // Returns the instructions of one device per stage with their times, at most `max_count` in total. The
  // first stage that would exceed this limit and all later stages are omitted.
  std::vector<TracedInstruction> instructions(const Constants& constants, std::size_t max_count) const;

 private:
  struct StageClass {
    Stage pattern;  // without devices; blocks are numbered from the first block of their chunk
    std::vector<int> block_patterns;  // [block]: pattern of the block; only for MoE models
    bool has_first = false, has_last = false;
    Device device;
    int place_in_domain = 0, width = 0, pipeline = 0;
    std::set<int> types;            // device types in the stage
    std::vector<int> first_blocks;  // [chunk]: first block of the chunk in the program
    Order order;
    std::unique_ptr<PricedProgram> program;
    // The programs of the same stage on other device types, if the stage has replicas on several types.
    std::vector<std::unique_ptr<PricedProgram>> other_programs;
    double forward_bytes = 0, backward_bytes = 0;  // bytes sent to adjacent stages per micro-batch
  };
  struct SimulatedPipeline {   // one pipeline
    std::vector<int> classes;  // [stage]
    std::vector<Order> orders;
    std::vector<double> sizes;                     // [micro-batch]: size relative to the first
    std::vector<Link> next_links, previous_links;  // [stage]
  };

  void add_pipeline(int number);
  int class_of(int pipeline, int stage);
  StepTimes simulate_times(const Constants& constants, bool stores_slots) const;
  void trace_stage(const StepTimes& step, int pipeline, int stage, const LaneTrace& lanes,
                   const Constants& constants, std::vector<TracedInstruction>& result) const;

  Setup setup_;
  std::shared_ptr<const ModelWork> model_work_;
  Plan short_plan_;  // the plan with at most two micro-batches in each pipeline
  std::vector<StageClass> classes_;
  std::vector<SimulatedPipeline> pipelines_;
  double num_nodes_ = 1;
};

}  // namespace optimus
