// Seconds of an instruction of a step program: what follows from (op, part, block) and the plan, put into the formulas of
// cost/device_cost.h and cost/link_cost.h.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "cost/device_cost.h"
#include "cost/link_cost.h"
#include "cost/model_work.h"
#include "schedule/program.h"

namespace optimus {

// Who runs what where. Refers to values that must outlive it.
struct Setup {
  const Plan& plan;
  const ModelSpec& model;
  const Cluster& cluster;
  const DeviceMap& map;
  const Software& software;
  ProductFormat format{};
};

// In what a plan's products are computed, where nobody says more.
ProductFormat format_of(Precision precision);

// A program prepared for pricing: instructions that cost the same are found once, so that pricing again with other constants
// looks at a few dozen of them.
class PricedProgram {
 public:
  // The model's work must outlive this object, as must what setup refers to. `device`: the physical one whose speed counts.
  PricedProgram(const Setup& setup, const ModelWork& work, Program program, Device device);

  const Program& program() const { return program_; }
  // Whether kernels were measured on the device: then nothing has to be assumed of its host.
  bool is_measured() const;
  // Seconds of each instruction; messages between devices take none here (simulate/pipeline.h has them).
  std::vector<double> price(const Constants& constants) const;

 private:
  double price_one(const Instruction& at, const DeviceCost& device, const LinkCost& links) const;
  double host_of_step(const DeviceCost& device) const;
  double compute(const Instruction& at, const DeviceCost& device) const;
  double residual_of(int block, const Constants& constants) const;
  double item(const WorkItem& item, const Instruction& at, double tokens, const LayerStrategy& strategy,
              const DeviceCost& device) const;
  bool is_narrow(int block) const { return std::binary_search(narrow_.begin(), narrow_.end(), block); }
  double product(const WorkItem& item, Op op, double tokens, double share, const LayerStrategy& strategy,
                 const DeviceCost& device) const;
  // Tokens of the busiest device of a mixture of experts, of the mean.
  double imbalance(const LayerStrategy& strategy, const Constants& constants) const;
  double attention(const WorkItem& item, Op op, double tokens, double share, const DeviceCost& device) const;
  double collective(const Instruction& at, const DeviceCost& device, const LinkCost& links) const;
  double ring(const Instruction& at, const DeviceCost& device, const LinkCost& links) const;
  double optimizer(const Instruction& at, const DeviceCost& device) const;
  const LayerStrategy& strategy(int block) const { return strategy_of(stage_, block); }
  double tokens(const Instruction& at) const;

  Setup setup_;
  const ModelWork& work_;
  Program program_;
  const Stage& stage_;
  Device device_;
  double width_;                    // bytes of an activation's element
  std::vector<int> narrow_;         // blocks that multiply in 8 bits
  std::vector<GroupShape> shapes_;  // [group]
  std::map<int, double> state_;     // block -> bytes of optimizer state that an update touches
  std::vector<int> kind_;           // [instruction] -> price
  std::vector<int> example_;        // [price] -> instruction
};

}  // namespace optimus
