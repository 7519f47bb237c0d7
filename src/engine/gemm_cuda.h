// GEMMs by cuBLASLt, which make_gemm() selects. gemm_cuda.cpp has the details.
#pragma once

#include "base/file.h"
#include "engine/gemm.h"

namespace optimus {

#ifdef OPTIMUS_CUDA
// `element` is bf16 or fp16. `algorithm_path` is the cache file for the fastest algorithms; if empty, they
// are not cached. `plain` computes everything that cuBLASLt does not support.
std::unique_ptr<Gemm> make_cuda_gemm(at::Device device, at::ScalarType element, const Path& algorithm_path,
                                     std::unique_ptr<Gemm> plain);
#endif

}  // namespace optimus
