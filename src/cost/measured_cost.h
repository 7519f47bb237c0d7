// Seconds of a model's operations from what a probe measured of our kernels (cluster/kernel_times.h), in place of the formulas
// in cost/instruction_cost.cpp.
#pragma once

#include "cluster/kernel_times.h"
#include "cost/model_work.h"
#include "plan/plan.h"
#include "schedule/program.h"

namespace optimus {

// One operation in one direction. rows: tokens that it sees; share: what one of the tensor-parallel parts has of its width.
struct MeasuredTask {
  const WorkItem& item;
  Op op = Op::forward;
  double rows = 0, share = 1;
  double head_dim = 0, length = 0;
  bool is_causal = true, is_post_norm = false;
  bool is_narrow = false;  // of a layer that multiplies in 8 bits
  bool is_measured_first =
      false;  // scales of the tensor at hand: nobody can write it in 8 bits before it is whole
};

// Below 0 when nothing that was measured tells it.
double measured_seconds(const KernelTimes& times, const MeasuredTask& task);

}  // namespace optimus
