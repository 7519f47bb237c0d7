// Computes the seconds of a model's operations from measured times of the engine's kernels
// (cluster/kernel_times.h) instead of the formulas in cost/instruction_cost.cpp.
#pragma once

#include "cluster/kernel_times.h"
#include "cost/model_work.h"
#include "plan/plan.h"
#include "schedule/program.h"

namespace optimus {

// One operation in one direction. `rows` is the number of tokens. `fraction` is the fraction of the
// operation's width that one tensor-parallel rank computes.
struct MeasuredTask {
  const WorkItem& item;
  Op op = Op::forward;
  double rows = 0, fraction = 1;
  double head_dim = 0, length = 0;
  bool is_causal = true, is_post_norm = false;
  bool is_low_precision = false;  // the layer computes in fp8
  // Current scaling derives the scale from the tensor itself, so the tensor cannot be written in fp8 before
  // it is complete.
  bool has_current_scaling = false;
};

// Returns a negative value if the measurements do not cover the operation.
double measured_seconds(const KernelTimes& times, const MeasuredTask& task);

}  // namespace optimus
