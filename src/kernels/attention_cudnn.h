// Attention by cuDNN's own graph interface. It reads q, k and v from the output of a joint GEMM and writes
// results to the caller's tensors, without copies or allocations. ATen's operators call the same kernels but
// return new tensors.
//
// Needs cuDNN's headers and its header-only frontend at build time (OPTIMUS_CUDNN). Without them is_built()
// returns false, and so do all calls. Called by one thread. Read next: attention_fused.cpp, which tries it
// first.
#pragma once

#include <memory>

#include "kernels/attention.h"

namespace optimus {

class CudnnAttention {
 public:
  CudnnAttention();
  ~CudnnAttention();
  static bool is_built();

  // As Attention::forward and backward, for tasks without segments and dropout. They return false if no
  // kernel supports the task; the caller must then use another implementation. The kernel is selected at the
  // first call with these shapes and strides.
  bool forward(const AttentionTask& task, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               at::Tensor& out, at::Tensor& logsumexp);
  bool backward(const AttentionTask& task, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& out, const at::Tensor& logsumexp, at::Tensor& dq,
                at::Tensor& dk, at::Tensor& dv);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace optimus
