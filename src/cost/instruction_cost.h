// Computes the seconds that each instruction of a step program takes. Derives sizes from (op, part, block)
// and the plan, and applies the formulas in cost/device_cost.h and cost/link_cost.h.
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

// A step program whose instruction times can be computed repeatedly with different constants. Instructions
// with equal cost are grouped once, so that each computation evaluates only a few dozen instructions.
class PricedProgram {
 public:
  // `model_work` and everything that `setup` refers to must outlive this object. `device` is the physical
  // device whose speed is used.
  PricedProgram(const Setup& setup, const ModelWork& model_work, Program program, Device device);

  const Program& program() const { return program_; }
  // Whether kernel times were measured on this device type. If so, the host overhead was measured too.
  bool is_measured() const;
  // Seconds taken by each instruction. Messages between stages take 0 seconds here, because
  // simulate/pipeline.h models them.
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
  // Tokens on the busiest device in an MoE layer, relative to the mean.
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
  std::vector<GroupShape> group_shapes_;  // placement on the cluster, indexed by group
  std::map<int, double> state_;           // block -> bytes of optimizer state that its update accesses
  std::vector<int> price_index_;          // index into example_instruction_, indexed by instruction
  std::vector<int> example_instruction_;  // one instruction for each distinct cost
};

}  // namespace optimus
