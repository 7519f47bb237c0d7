// Reductions of the same tensor of several ranks. Always in the given order, so every rank that computes one
// gets the same bits; bf16 and fp16 are summed in fp32 and rounded once.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "comm/comm.h"

namespace optimus {

// Rows of equal length and type (fp64, fp32, bf16, fp16, int64, int32); `to` may be one of the pieces. On
// CPUs it uses one thread, because background communication must not take the threads of the kernels; on CUDA
// it uses the current stream. A maximum that involves NaN is NaN.
void sum_in_order(std::span<const at::Tensor> pieces, const at::Tensor& to, ReduceOp kind);

// Like tensor.copy_, for rows; on CPUs with memcpy.
void copy_row(const at::Tensor& from, const at::Tensor& to);

}  // namespace optimus
