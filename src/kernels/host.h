// HostKernels: the CPU kernels. The files host_*.cpp group the functions by what they compute.
//
// Read next: host_math.h (elements), host_rows.h (tensors as rows), then any host_*.cpp.
#pragma once

#include "kernels/kernels.h"

namespace optimus {

class HostKernels final : public Kernels {
 public:
  // host_norm.cpp
  void norm(const NormOptions& options, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
            at::Tensor& y, at::Tensor& statistics) const override;
  void norm_backward(const NormOptions& options, const at::Tensor& dy, const at::Tensor& x,
                     const at::Tensor& weight, const at::Tensor& statistics, const at::Tensor& residual,
                     at::Tensor& dx, at::Tensor& weight_gradient, at::Tensor& bias_gradient) const override;
  // host_activation.cpp
  void activation(Activation kind, const at::Tensor& x, const at::Tensor& gate, at::Tensor& y) const override;
  void activation_backward(Activation kind, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate,
                           at::Tensor& dx, at::Tensor& d_gate) const override;
  // host_embedding.cpp
  void rope(at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, const at::Tensor& positions,
            bool is_backward) const override;
  void embedding(const at::Tensor& ids, const at::Tensor& position_ids, const at::Tensor& tokens,
                 const at::Tensor& positions, const at::Tensor& types, at::Tensor& out) const override;
  void embedding_backward(const at::Tensor& dout, const at::Tensor& ids, const at::Tensor& position_ids,
                          at::Tensor& tokens, at::Tensor& positions, at::Tensor& types) const override;
  // host_loss.cpp
  void cross_entropy(at::Tensor& logits, const at::Tensor& targets, at::Tensor& losses,
                     double gradient_scale) const override;
  void loss_statistics(const at::Tensor& logits, const at::Tensor& targets,
                       at::Tensor& statistics) const override;
  void loss_gradient(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& logsumexp,
                     double gradient_scale) const override;
  // host_add.cpp
  void add(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
           const DropoutSite& dropout, at::Tensor& y) const override;
  void dropout_backward(const at::Tensor& dy, const DropoutSite& dropout, at::Tensor& dx) const override;
  void add_rows(const at::Tensor& x, at::Tensor& sum) const override;
  // host_optimizer.cpp
  void add_square_sum(const at::Tensor& flat, at::Tensor& sum) const override;
  void pass_gate(const GateOptions& options, at::Tensor& step_scalars) const override;
  void adamw(const AdamOptions& options, const at::Tensor& step_scalars, const at::Tensor& gradient,
             at::Tensor& master, at::Tensor& first_moment, at::Tensor& second_moment,
             at::Tensor& weight) const override;
  void convert(const at::Tensor& from, at::Tensor& to) const override;
};

}  // namespace optimus
