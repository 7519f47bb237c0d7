// Measures the speed of fp8 GEMMs and of the operations around them: casts, transpositions, and norms and
// activation functions with fp8 output. Tables as in cluster/kernel_times.h. Used only by engine/probe.cpp.
#pragma once

#include "cluster/kernel_times.h"
#include "engine/probe_timing.h"
#include "engine/products.h"
#include "kernels/kernels.h"

namespace optimus {

struct NarrowProbe {
  at::Device device;
  Products& products;
  const Kernels& kernels;
  Ring &inputs, &outputs, &sums;
  const at::Tensor& idle;
  std::function<void(std::int64_t done, std::int64_t total)> progress;
};

void probe_narrow(const NarrowProbe& with, KernelTimes& times);

}  // namespace optimus
