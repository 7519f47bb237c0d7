// Chooses the implementation of the GEMMs of a layer (engine/gemm.h).
#pragma once

#include <memory>

#include "base/file.h"
#include "engine/gemm.h"

namespace optimus {

// Returns the implementation for a device and element type. On CPUs without GEMMs in bf16 or fp16, operands
// are converted to fp32, with the same results as accumulation in fp32. On CUDA, 16-bit GEMMs use the
// algorithms that were measured to be the fastest (gemm_cuda.cpp) and accumulate weight gradients in fp32.
// `algorithm_path` is the cache file for these algorithms; if empty, they are not cached.
std::unique_ptr<Gemm> make_gemm(at::Device device, at::ScalarType element, const Path& algorithm_path = {});

}  // namespace optimus
