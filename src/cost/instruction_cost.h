// Seconds of the instructions of a step program. Derives sizes from (op, part, block) and the plan, and
// applies the formulas of cost/device_cost.h and cost/link_cost.h.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "cost/device_cost.h"
#include "cost/link_cost.h"
#include "cost/model_work.h"
#include "schedule/program.h"

namespace optimus {

// A plan with its model, cluster, device map and software. The referenced objects must outlive this struct.
struct Setup {
  const Plan& plan;
  const ModelSpec& model;
  const Cluster& cluster;
  const DeviceMap& map;
  const Software& software;
  GemmFormat format{};
};

// The default GEMM format of a plan's precision.
GemmFormat format_of(Precision precision);

// A program prepared for pricing. Instructions with equal cost are grouped once, so that pricing with other
// constants evaluates only a few dozen instructions.
class PricedProgram {
 public:
  // `model_work` and everything that `setup` refers to must outlive this object. `device`: the physical
  // device whose speed is used.
  PricedProgram(const Setup& setup, const ModelWork& model_work, Program program, Device device);

  const Program& program() const { return program_; }
  // Whether kernels were measured on this device type. If so, the host overhead is measured too and needs
  // no assumption.
  bool is_measured() const;
  // Seconds of each instruction. Messages between stages cost 0 here; simulate/pipeline.h models them.
  std::vector<double> price(const Constants& constants) const;

 private:
  double price_instruction(const Instruction& instruction, const DeviceCost& device,
                           const LinkCost& links) const;
  double host_seconds_of_step(const DeviceCost& device) const;
  double compute_seconds(const Instruction& instruction, const DeviceCost& device) const;
  double residual_factor_of(int block, const Constants& constants) const;
  double item_seconds(const WorkItem& item, const Instruction& instruction, double tokens,
                      const LayerStrategy& strategy, const DeviceCost& device) const;
  bool is_low_precision(int block) const {
    return std::binary_search(fp8_blocks_.begin(), fp8_blocks_.end(), block);
  }
  double gemm_seconds(const WorkItem& item, Op op, double tokens, double fraction,
                      const LayerStrategy& strategy, const DeviceCost& device) const;
  // Tokens of the busiest device of an MoE layer, relative to the mean.
  double expert_imbalance_factor(const LayerStrategy& strategy, const Constants& constants) const;
  double attention_seconds(const WorkItem& item, Op op, double tokens, double fraction,
                           const DeviceCost& device) const;
  double collective_seconds(const Instruction& instruction, const DeviceCost& device,
                            const LinkCost& links) const;
  double exposed_ring_seconds(const Instruction& instruction, const DeviceCost& device,
                              const LinkCost& links) const;
  double optimizer_seconds(const Instruction& instruction, const DeviceCost& device) const;
  const LayerStrategy& strategy(int block) const { return strategy_of(stage_, block); }
  double device_tokens(const Instruction& instruction) const;

  Setup setup_;
  const ModelWork& model_work_;
  Program program_;
  const Stage& stage_;
  Device device_;
  double width_;                          // bytes per activation element
  std::vector<int> fp8_blocks_;           // blocks that compute in fp8
  std::vector<GroupShape> group_shapes_;  // [group]: its placement on the cluster
  std::map<int, double> state_;           // block -> bytes of optimizer state that its update reads or writes
  std::vector<int> price_index_;          // [instruction]: index into example_instruction_
  std::vector<int> example_instruction_;  // [price]: one instruction with that price
};

}  // namespace optimus
