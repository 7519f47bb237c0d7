// GEMMs by cuBLASLt, for make_gemm; see gemm_cuda.cpp.
#pragma once

#include "base/file.h"
#include "engine/gemm.h"

namespace optimus {

#ifdef OPTIMUS_CUDA
// bf16 or fp16. `record`: the file for the fastest algorithms; empty: they are not stored. `plain` handles
// all other cases.
std::unique_ptr<Gemm> make_cuda_gemm(at::Device device, at::ScalarType element, const Path& record,
                                     std::unique_ptr<Gemm> plain);
#endif

}  // namespace optimus
