// Measures the speed of fp8 GEMMs and of the operations around them: casts, transpositions, and norms and
// activation functions with fp8 output. Writes the tables of cluster/kernel_times.h. Used only by
// engine/probe.cpp.
#pragma once

#include "cluster/kernel_times.h"
#include "engine/gemm.h"
#include "engine/probe_timing.h"
#include "kernels/kernels.h"

namespace optimus {

struct Fp8ProbeContext {
  at::Device device;
  Gemm& gemm;
  const Kernels& kernels;
  OperandRing &inputs, &outputs, &sums;
  const at::Tensor& copy_buffer;
  std::function<void(std::int64_t num_done, std::int64_t total)> progress;
};

void probe_fp8(const Fp8ProbeContext& context, KernelTimes& times);

}  // namespace optimus
