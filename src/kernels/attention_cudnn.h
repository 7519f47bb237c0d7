// Attention by cuDNN's own graph interface, reading q, k and v where a joint product left them and writing results where the
// caller wants them: no copies, no tensors of the library's. ATen's operators, which call the same kernels, return new tensors.
//
// Needs cuDNN's headers and its header-only frontend when it is built (OPTIMUS_CUDNN); without them it can do nothing, and
// says so. One thread calls. Read next: attention_fused.cpp, which asks it first.
#pragma once

#include <memory>

#include "kernels/attention.h"

namespace optimus {

class CudnnAttention {
 public:
  CudnnAttention();
  ~CudnnAttention();
  static bool is_built();

  // As Attention::forward and backward, for tasks without segments. false: there is no kernel for this, and somebody else must do
  // it all. The kernel is chosen at the first call with these shapes and strides. Dropout is a mask that is filled before each
  // call, for as many sequences or heads at a time as 256 MiB hold.
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
