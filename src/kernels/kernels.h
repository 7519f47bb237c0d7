// Kernels: what happens to activations and state between the products, one call an operation.
//
// An interface with several implementations, chosen once when an engine is made (make_kernels): HostKernels are loops for
// processors; CudaKernels (in builds with CUDA) are CUDA C++; PlainKernels are compositions of ATen operations that run on
// every device and that tests compare the others with. All tensors are handed in; a kernel allocates nothing that outlives the call, and HostKernels nothing but a few
// rows a thread. Results do not depend on how rows are grouped into calls, except for sums over rows.
//
// Types: activations and weights are of the engine's element type (fp64, fp32, bf16, fp16); statistics, losses and gradient
// accumulators are fp32, or fp64 with fp64 elements; arithmetic is in that wider type. Tensors of activations are
// [rows, width] with contiguous rows (stride(1) == 1; stride(0) may be larger), where rows are tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "base/random.h"
#include "kernels/fp8.h"
#include "kernels/step_numbers.h"
#include "model/spec.h"
#include "plan/fp8.h"

namespace optimus {

struct NormOptions {
  NormKind kind = NormKind::layer_norm;
  double eps = 1e-5;
};

// Sums of columns that are added to, as by add_rows: of the residual and of dx. Undefined: not wanted.
struct StreamSums {
  at::Tensor residual, output;
};

// A dropout site: element (row, column) of a [rows, width] tensor is dropped when its uniform number is below `rate`, else
// scaled by 1 / (1 - rate). The number is element (position * width + column) of the key of the row's sample,
// key.with(global sample), so that masks do not depend on micro-batches or ranks.
// From rows of a sequence to its positions: one after the other, with one jump where a device has two spans of it (context
// parallelism).
struct PositionMap {
  std::int64_t first = 0, jump_at = std::numeric_limits<std::int64_t>::max(), jump = 0;
  std::int64_t operator()(std::int64_t row) const { return first + row + (row >= jump_at ? jump : 0); }
};

struct DropoutSite {
  double rate = 0;
  RandomKey key{};                      // of (seed, step, layer, site)
  std::vector<std::int64_t> samples{};  // global sample of each sequence
  std::int64_t sequence_length = 0;     // rows of a sequence
  std::int64_t first_row = 0;           // of these sequences' rows, the tensor's first
  PositionMap positions{};
};

// AdamW as torch.optim.AdamW: decoupled decay. What changes from step to step is among the step's numbers.
struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0;
};

class Kernels {
 public:
  virtual ~Kernels() = default;

  // y = (x - mean) * rstd * weight + bias (layer norm), x * rstd * weight (RMS norm: bias undefined).
  // statistics: [rows, 2] mean and rstd, or [rows, 1] rstd. x, y: [rows, width] or, for norms of single heads,
  // [rows, heads, head_dim] with statistics [rows, heads, …] and weight [head_dim].
  virtual void norm(const NormOptions& options, const at::Tensor& x, const at::Tensor& weight,
                    const at::Tensor& bias, at::Tensor& y, at::Tensor& statistics) const = 0;
  // dx = residual + the gradient through the norm (residual may be undefined: nothing is added; dx may be dy or residual).
  // weight_gradient and bias_gradient (undefined for RMS norm) are added to.
  virtual void norm_backward(const NormOptions& options, const at::Tensor& dy, const at::Tensor& x,
                             const at::Tensor& weight, const at::Tensor& statistics,
                             const at::Tensor& residual, at::Tensor& dx, at::Tensor& weight_gradient,
                             at::Tensor& bias_gradient) const = 0;

  // The same, and columns of what flows past are summed on the way: bias gradients of the products around the norm.
  virtual void norm_backward_with_sums(const NormOptions& options, const at::Tensor& dy, const at::Tensor& x,
                                       const at::Tensor& weight, const at::Tensor& statistics,
                                       const at::Tensor& residual, at::Tensor& dx,
                                       at::Tensor& weight_gradient, at::Tensor& bias_gradient,
                                       StreamSums& sums) const;

  // y = act(x), or act(gate) * x when gate is defined.
  virtual void activation(Activation kind, const at::Tensor& x, const at::Tensor& gate,
                          at::Tensor& y) const = 0;
  // dx (and d_gate where gate is defined) from dy; dx may be dy.
  virtual void activation_backward(Activation kind, const at::Tensor& dy, const at::Tensor& x,
                                   const at::Tensor& gate, at::Tensor& dx, at::Tensor& d_gate) const = 0;

  // Rotates halves (Hugging Face's order: element i with element i + head_dim / 2), in place. x: [rows, heads, head_dim],
  // strided; cosine, sine: [positions, head_dim / 2] in the wider type; positions: int32 [rows]. backward: the inverse.
  virtual void rope(at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                    const at::Tensor& positions, bool is_backward) const = 0;

  // out = tokens[ids] + positions[position ids] + types[0] (the last two where defined). ids: int64, position_ids: int32.
  // An id below 0 has no row here and adds nothing: another device holds that part of the vocabulary.
  virtual void embedding(const at::Tensor& ids, const at::Tensor& position_ids, const at::Tensor& tokens,
                         const at::Tensor& positions, const at::Tensor& types, at::Tensor& out) const = 0;
  // Adds to the accumulators of the tables that are defined, each row in the order of tokens: the same sum on any number of
  // threads.
  virtual void embedding_backward(const at::Tensor& dout, const at::Tensor& ids,
                                  const at::Tensor& position_ids, at::Tensor& tokens, at::Tensor& positions,
                                  at::Tensor& types) const = 0;

  // Softmax cross entropy of some rows of logits [rows, vocab]; targets int64, -1 counts nothing. losses: [rows] of the
  // wider type, -log p of the target (0 where not counted). With a gradient_scale other than 0 the logits become their
  // gradient: (softmax - onehot) * gradient_scale, 0 where not counted.
  virtual void cross_entropy(at::Tensor& logits, const at::Tensor& targets, at::Tensor& losses,
                             double gradient_scale) const = 0;

  // The same where devices share out the vocabulary: each has some columns of the logits. targets count in these columns; -2:
  // the target is among others'. statistics [rows, 3], of the wider type: the largest logit, the sum of e^(logit - largest), and
  // the target's logit, 0 where it is not here.
  virtual void loss_statistics(const at::Tensor& logits, const at::Tensor& targets,
                               at::Tensor& statistics) const = 0;
  // Logits become their gradient, given the logarithm of the sum of e^logit over all columns of all devices, [rows].
  virtual void loss_gradient(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& logsumexp,
                             double gradient_scale) const = 0;

  // y = residual + bias + dropout(x): each of residual and bias may be undefined, and the dropout rate 0. bias is inside
  // the dropout: dropout(x + bias). y may be x or residual.
  virtual void add(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                   const DropoutSite& dropout, at::Tensor& y) const = 0;
  // dx = dropout's mask applied to dy; dx may be dy.
  virtual void dropout_backward(const at::Tensor& dy, const DropoutSite& dropout, at::Tensor& dx) const = 0;

  // sum[j] += sum of rows of x[., j]: a bias gradient.
  virtual void add_rows(const at::Tensor& x, at::Tensor& sum) const = 0;
  // sum (one fp64 element on the device) += the squares of a flat gradient buffer, summed in fp64; infinite or NaN when an
  // element is. Stays on the device, so that nobody waits for it.
  virtual void add_square_sum(const at::Tensor& flat, at::Tensor& sum) const = 0;
  // numbers: the step's (step_numbers.h), fp64 on the device. What lies between gradients and updates.
  virtual void pass_gate(const GateOptions& options, at::Tensor& numbers) const = 0;
  // One pass: gradient, master, moments -> master, moments, and the weight in its element type (weight may be master).
  // Nothing happens when the step's gradient was not finite.
  virtual void adamw(const AdamOptions& options, const at::Tensor& numbers, const at::Tensor& gradient,
                     at::Tensor& master, at::Tensor& first, at::Tensor& second, at::Tensor& weight) const = 0;
  // To 8 bits (kernels/fp8.h), in one pass: y [rows, width] and transposed [width, rows] are contiguous; undefined: not wanted. maximum
  // (one fp32 element; undefined: not wanted) becomes the largest of itself and |x|.
  virtual void quantise(Fp8Operand operand, const at::Tensor& x, const at::Tensor& scale, at::Tensor& y,
                        at::Tensor& transposed, at::Tensor& maximum) const;
  // to = from, in to's type.
  virtual void convert(const at::Tensor& from, at::Tensor& to) const = 0;
  // A gradient through an activation function straight to 8 bits: activation_backward, add_rows to `sum` (undefined: not wanted) and
  // quantise as a gradient, without the one in between. Of the result's columns the gate's come first, where there is one.
  virtual void quantise_through(Activation kind, const at::Tensor& dy, const at::Tensor& x,
                                const at::Tensor& gate, const at::Tensor& scale, at::Tensor& y,
                                at::Tensor& transposed, at::Tensor& maximum, at::Tensor& sum) const;
  // norm and activation straight to 8 bits, as an input of a product: the same as rounding y to them, without y.
  virtual void norm_to_fp8(const NormOptions& options, const at::Tensor& x, const at::Tensor& weight,
                           const at::Tensor& bias, at::Tensor& statistics, Fp8Room& room) const;
  virtual void activation_to_fp8(Activation kind, const at::Tensor& x, const at::Tensor& gate,
                                 Fp8Room& room) const;
  // to [width, rows] = from [rows, width], both in 8 bits and contiguous.
  virtual void transpose_fp8(const at::Tensor& from, at::Tensor& to) const;
};

std::unique_ptr<Kernels> make_host_kernels();
std::unique_ptr<Kernels> make_plain_kernels();
#ifdef OPTIMUS_CUDA
std::unique_ptr<Kernels> make_cuda_kernels();
#endif
// The fastest there is for a device.
std::unique_ptr<Kernels> make_kernels(at::Device device);

// For updates that pass no gate, tests and benches: numbers as they are behind the gate of update `step`, gradients multiplied by `factor`.
at::Tensor numbers_behind_gate(at::Device device, double learning_rate, std::int64_t step = 1,
                               double factor = 1, const GateOptions& options = {});

}  // namespace optimus
