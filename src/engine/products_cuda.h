// GEMMs by cuBLASLt, for make_products; see products_cuda.cpp.
#pragma once

#include "base/file.h"
#include "engine/products.h"

namespace optimus {

#ifdef OPTIMUS_CUDA
// bf16 or fp16. `record`: the file for the fastest algorithms; empty: they are not stored. `plain` handles
// all other cases.
std::unique_ptr<Products> make_cuda_products(at::Device device, at::ScalarType element, const Path& record,
                                             std::unique_ptr<Products> plain);
#endif

}  // namespace optimus
