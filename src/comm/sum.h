// Sums of the same tensor of several ranks. Always in the order given, so that whoever computes one gets the same bits; bf16 and
// fp16 are summed in fp32 and rounded once.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "comm/comm.h"

namespace optimus {

// Rows of equal length and type (fp64, fp32, bf16, fp16, int64, int32); `to` may be one of the pieces. One thread, on processors:
// whoever communicates in the background must not take the threads of the kernels. On CUDA: on the current stream. A maximum of
// something that is no number is no number.
void sum_in_order(std::span<const at::Tensor> pieces, const at::Tensor& to, Sum kind);

// As tensor.copy_, of rows; on processors with memcpy.
void copy_row(const at::Tensor& from, const at::Tensor& to);

}  // namespace optimus
