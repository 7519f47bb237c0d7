// Attention with dropout by this project's CUDA kernels, for bf16 and fp16, heads of 64 or 128 elements and
// whole sequences. The kernels draw the random numbers themselves (attention_dropout.h), and results repeat
// exactly.
//
// Without CUDA the functions return false. Read next: attention_fused.cpp, which calls them, and
// cuda_attention_forward.cu.
#pragma once

#include "kernels/attention.h"

namespace optimus {

// As Attention::forward and backward, for tasks with dropout. They return false if the kernels do not
// support the task; the caller must then use another implementation. The backward allocates two numbers per
// query and head, and copies of operands that alias results.
bool dropout_attention_forward(const AttentionTask& task, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, at::Tensor& out, at::Tensor& logsumexp);
bool dropout_attention_backward(const AttentionTask& task, const at::Tensor& dout, const at::Tensor& q,
                                const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                                const at::Tensor& logsumexp, at::Tensor& dq, at::Tensor& dk, at::Tensor& dv);

}  // namespace optimus
