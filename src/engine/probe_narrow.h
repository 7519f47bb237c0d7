// How fast products in 8 bits are, and what comes with them: casts, transpositions, norms and activation functions that write 8 bits.
// Tables as in cluster/kernel_times.h. Used by engine/probe.cpp alone.
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
