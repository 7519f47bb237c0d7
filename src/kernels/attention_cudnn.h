// Attention through cuDNN's graph API. It reads q, k and v from the output of a fused GEMM and writes results
// to the caller's tensors, without copies or allocations. ATen's operators call the same kernels but return
// new tensors.
//
// Needs cuDNN's headers and its header-only frontend at build time (OPTIMUS_CUDNN). Without them, is_built()
// and all calls return false. Called by one thread. Read next: attention_fused.cpp, which tries it first.
#pragma once

#include <memory>

#include "kernels/attention.h"

namespace optimus {

class CudnnAttention {
 public:
  CudnnAttention();
  ~CudnnAttention();
  static bool is_built();

  // Like Attention::forward() and backward(), but for tasks without segments. Return false if no kernel
  // supports the task; the caller must then use another implementation. The kernel is selected in the first
  // call with the given shapes and strides. With dropout, a mask of at most 256 MiB is filled before each
  // call to cuDNN, which then covers only the sequences or heads of this mask.
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
