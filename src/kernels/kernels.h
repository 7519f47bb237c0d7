// Kernels: the operations on activations and state between the GEMMs, one call per operation.
//
// The interface has several implementations, one of which is selected when an engine is created
// (make_kernels). HostKernels are CPU loops. CudaKernels (in builds with CUDA) are CUDA C++. PlainKernels are
// compositions of ATen operations that run on every device and serve as the reference in tests. Callers pass
// all tensors. No kernel allocates memory that outlives the call, and HostKernels allocate only a few rows
// per thread. Results do not depend on how rows are grouped into calls, except for sums over rows.
//
// Types: activations and weights have the engine's element type (fp64, fp32, bf16, fp16). Statistics, losses
// and gradient accumulators are fp32, or fp64 with fp64 elements, and arithmetic uses that wider type.
// Activation tensors are [rows, width] with contiguous rows (stride(1) == 1; stride(0) may be larger), where
// rows are tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "base/random.h"
#include "kernels/fp8.h"
#include "kernels/step_scalars.h"
#include "model/spec.h"
#include "plan/fp8.h"

namespace optimus {

struct NormOptions {
  NormKind kind = NormKind::layer_norm;
  double eps = 1e-5;
};

// Accumulators for the column sums of `residual` and of dx, as in add_rows. Undefined if not needed.
struct StreamSums {
  at::Tensor residual, output;
};

// Maps a device's rows of a sequence to positions. These are consecutive, with one jump if the device has two
// spans of the sequence (context parallelism).
struct PositionMap {
  std::int64_t first_position = 0, jump_at = std::numeric_limits<std::int64_t>::max(), jump = 0;
  std::int64_t operator()(std::int64_t row) const {
    return first_position + row + (row >= jump_at ? jump : 0);
  }
};

// A dropout site. Element (row, column) of a [rows, width] tensor is dropped if its uniform random number is
// below `rate`, and otherwise scaled by 1 / (1 - rate). The number has index position * width + column in the
// sequence of the sample's key, key.derive(global sample), so that masks do not depend on micro-batches or
// ranks.
struct DropoutSite {
  double rate = 0;
  RandomKey key{};                      // derived from (seed, step, layer, site)
  std::vector<std::int64_t> samples{};  // global sample index of each sequence
  std::int64_t sequence_length = 0;     // rows per sequence
  std::int64_t first_row = 0;           // index of the tensor's first row among the rows of these sequences
  PositionMap positions{};
};

// Options of AdamW with decoupled weight decay, as in torch.optim.AdamW. Values that change every step are in
// the step scalars (step_scalars.h).
struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0;
};

class Kernels {
 public:
  virtual ~Kernels() = default;

  // y = (x - mean) * rstd * weight + bias (layer norm), or x * rstd * weight (RMS norm: bias undefined).
  // statistics: [rows, 2] mean and rstd, or [rows, 1] rstd. x, y: [rows, width] or, for norms of single
  // heads, [rows, heads, head_dim] with statistics [rows, heads, …] and weight [head_dim].
  virtual void norm(const NormOptions& options, const at::Tensor& x, const at::Tensor& weight,
                    const at::Tensor& bias, at::Tensor& y, at::Tensor& statistics) const = 0;
  // dx = residual + the gradient through the norm. `residual` may be undefined, and dx may be the same tensor
  // as dy or residual. Accumulates into weight_gradient and bias_gradient (undefined for RMS norm).
  virtual void norm_backward(const NormOptions& options, const at::Tensor& dy, const at::Tensor& x,
                             const at::Tensor& weight, const at::Tensor& statistics,
                             const at::Tensor& residual, at::Tensor& dx, at::Tensor& weight_gradient,
                             at::Tensor& bias_gradient) const = 0;

  // Like norm_backward(), but also accumulates the column sums of residual and dx in the same pass. These are
  // the bias gradients of the GEMMs before and after the norm.
  virtual void norm_backward_with_sums(const NormOptions& options, const at::Tensor& dy, const at::Tensor& x,
                                       const at::Tensor& weight, const at::Tensor& statistics,
                                       const at::Tensor& residual, at::Tensor& dx,
                                       at::Tensor& weight_gradient, at::Tensor& bias_gradient,
                                       StreamSums& sums) const;

  // y = act(x), or act(gate) * x when gate is defined.
  virtual void activation(Activation kind, const at::Tensor& x, const at::Tensor& gate,
                          at::Tensor& y) const = 0;
  // Computes dx (and d_gate if gate is defined) from dy; dx may be dy.
  virtual void activation_backward(Activation kind, const at::Tensor& dy, const at::Tensor& x,
                                   const at::Tensor& gate, at::Tensor& dx, at::Tensor& d_gate) const = 0;

  // Rotary embedding, in place, in Hugging Face's order (element i is rotated with element i + head_dim / 2).
  // x: [rows, heads, head_dim], strided; cosine, sine: [positions, head_dim / 2] in the wider type;
  // positions: int32 [rows]. is_backward selects the inverse rotation.
  virtual void rope(at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                    const at::Tensor& positions, bool is_backward) const = 0;

  // out = tokens[ids] + positions[position ids] + types[0] (the last two if defined). ids: int64,
  // position_ids: int32. A negative id adds nothing, because another device has that part of the vocabulary.
  virtual void embedding(const at::Tensor& ids, const at::Tensor& position_ids, const at::Tensor& tokens,
                         const at::Tensor& positions, const at::Tensor& types, at::Tensor& out) const = 0;
  // Adds to the gradient accumulators of the defined tables. Additions to each table row happen in token
  // order, so the result does not depend on the number of threads.
  virtual void embedding_backward(const at::Tensor& dout, const at::Tensor& ids,
                                  const at::Tensor& position_ids, at::Tensor& tokens, at::Tensor& positions,
                                  at::Tensor& types) const = 0;

  // Softmax cross entropy of some rows of logits, [rows, vocab]. targets: int64, where -1 means no loss.
  // losses: [rows] of the wider type, -log p of the target (0 for targets of -1). If gradient_scale is not 0,
  // the logits are overwritten by their gradient, (softmax - onehot) * gradient_scale (0 for targets of -1).
  virtual void cross_entropy(at::Tensor& logits, const at::Tensor& targets, at::Tensor& losses,
                             double gradient_scale) const = 0;

  // Used if the vocabulary is split over devices, so that each device has some columns of the logits.
  // `targets` are relative to these columns; -2 means that the target is on another device. `statistics` is
  // [rows, 3], of the wider type. Its columns are the largest logit, the sum of e^(logit - largest), and the
  // target's logit (0 if it is on another device).
  virtual void loss_statistics(const at::Tensor& logits, const at::Tensor& targets,
                               at::Tensor& statistics) const = 0;
  // Overwrites logits with their gradient. `logsumexp`, [rows], is the logarithm of the sum of e^logit over
  // the columns of all devices.
  virtual void loss_gradient(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& logsumexp,
                             double gradient_scale) const = 0;

  // y = residual + dropout(x + bias). residual and bias may be undefined, and the dropout rate may be 0. y
  // may be x or residual.
  virtual void add(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                   const DropoutSite& dropout, at::Tensor& y) const = 0;
  // dx = dy with the dropout mask applied. dx may be dy.
  virtual void dropout_backward(const at::Tensor& dy, const DropoutSite& dropout, at::Tensor& dx) const = 0;

  // Computes a bias gradient: adds the sum of column j of x to sum[j].
  virtual void add_rows(const at::Tensor& x, at::Tensor& sum) const = 0;
  // Adds the squares of a flat gradient buffer, summed in fp64, to `sum` (one fp64 element on the device).
  // The result is not finite if any element is not finite. It stays on the device, so that nothing waits for
  // it.
  virtual void add_square_sum(const at::Tensor& flat, at::Tensor& sum) const = 0;
  // The step gate between gradients and updates. Computes the last step scalars from the sums (compute_gate
  // in step_scalars.h). `step_scalars` is in fp64, on the device.
  virtual void pass_gate(const GateOptions& options, at::Tensor& step_scalars) const = 0;
  // Updates the master and the moments from the gradient, and writes the weight in its element type, in one
  // pass. `weight` may be `master`. Does nothing if the step's gradient is not finite.
  virtual void adamw(const AdamOptions& options, const at::Tensor& step_scalars, const at::Tensor& gradient,
                     at::Tensor& master, at::Tensor& first_moment, at::Tensor& second_moment,
                     at::Tensor& weight) const = 0;
  // Converts to fp8 (kernels/fp8.h) in one pass. y [rows, width] and transposed [width, rows] are
  // contiguous, and each is undefined if it is not needed. maximum (one fp32 element, or undefined) becomes
  // the maximum of itself and |x|.
  virtual void quantize(Fp8Operand operand, const at::Tensor& x, const at::Tensor& scale, at::Tensor& y,
                        at::Tensor& transposed, at::Tensor& maximum) const;
  // Copies `from` to `to`, converted to the type of `to`.
  virtual void convert(const at::Tensor& from, at::Tensor& to) const = 0;
  // Computes the gradient through an activation function and writes it directly in fp8. Fuses
  // activation_backward, add_rows to `sum` (may be undefined), and quantize as a gradient, without an
  // intermediate tensor. With a gate, the gate's columns of the result come first.
  virtual void quantize_activation_gradient(Activation kind, const at::Tensor& dy, const at::Tensor& x,
                                            const at::Tensor& gate, const at::Tensor& scale, at::Tensor& y,
                                            at::Tensor& transposed, at::Tensor& maximum,
                                            at::Tensor& sum) const;
  // Like norm() and activation(), but with fp8 output, which is the input of a GEMM. Equivalent to quantizing
  // y, without writing y.
  virtual void norm_to_fp8(const NormOptions& options, const at::Tensor& x, const at::Tensor& weight,
                           const at::Tensor& bias, at::Tensor& statistics, Fp8Output& output) const;
  virtual void activation_to_fp8(Activation kind, const at::Tensor& x, const at::Tensor& gate,
                                 Fp8Output& output) const;
  // Writes the transpose of `from`, [rows, width], to `to`, [width, rows]. Both are fp8 and contiguous.
  virtual void transpose_fp8(const at::Tensor& from, at::Tensor& to) const;
};

std::unique_ptr<Kernels> make_host_kernels();
std::unique_ptr<Kernels> make_plain_kernels();
#ifdef OPTIMUS_CUDA
std::unique_ptr<Kernels> make_cuda_kernels();
#endif
// Returns the fastest implementation for a device.
std::unique_ptr<Kernels> make_kernels(at::Device device);

// Returns the step scalars as they are after the step gate of update `step` (counted from 1), with gradients
// multiplied by `factor`. Used for updates without a step gate, in tests and in benchmarks.
at::Tensor step_scalars_after_gate(at::Device device, double learning_rate, std::int64_t step = 1,
                                   double factor = 1, const GateOptions& options = {});

}  // namespace optimus
