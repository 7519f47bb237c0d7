// Chooses the implementation of the GEMMs of a layer (engine/gemm.h).
#pragma once

#include <memory>

#include "base/file.h"
#include "engine/gemm.h"

namespace optimus {

// The implementation for the device and element type: direct; via fp32 on CPUs without bf16 or fp16 GEMMs
// (the values equal those of fp32 accumulation); with measured algorithms on CUDA (gemm_cuda.cpp),
// accumulating gradients in fp32. record: the file for measured algorithms; empty: they are not stored.
std::unique_ptr<Gemm> make_gemm(at::Device device, at::ScalarType element, const Path& record = {});

}  // namespace optimus
