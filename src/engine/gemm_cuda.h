// GEMMs by cuBLASLt, for make_gemm; see gemm_cuda.cpp.
#pragma once

#include "base/file.h"
#include "engine/gemm.h"

namespace optimus {

#ifdef OPTIMUS_CUDA
// `element` is bf16 or fp16. `algorithm_path` is the file that stores the fastest algorithms; empty if they
// are not stored. `plain` computes everything that cuBLASLt does not support.
std::unique_ptr<Gemm> make_cuda_gemm(at::Device device, at::ScalarType element, const Path& algorithm_path,
                                     std::unique_ptr<Gemm> plain);
#endif

}  // namespace optimus
