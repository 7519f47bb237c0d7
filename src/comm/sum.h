// Reductions of a tensor over several ranks. The order of additions is fixed, so every rank that computes a
// reduction gets the same bits; bf16 and fp16 are summed in fp32 and rounded once.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "comm/comm.h"

namespace optimus {

// Writes the sum or maximum of `pieces` to `to`, which may be one of them. All tensors are rows of equal
// length and type (fp64, fp32, bf16, fp16, int64, int32). On CPUs this uses one thread, because background
// communication must not occupy the threads of the kernels; on CUDA it uses the current stream. The maximum
// is NaN if any of the values is NaN.
void sum_in_order(std::span<const at::Tensor> pieces, const at::Tensor& to, ReduceOp kind);

// Like tensor.copy_(), but for rows. Uses memcpy on CPUs.
void copy_row(const at::Tensor& from, const at::Tensor& to);

}  // namespace optimus
