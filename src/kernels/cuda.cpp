// CudaKernels: calls the kernels of cuda_*.cu with tensors, on the current stream. Workspaces come from
// ATen's stream-ordered allocator. Compiled in CUDA builds only; otherwise the file is empty.
#ifdef OPTIMUS_CUDA
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>

#include <algorithm>

#include "kernels/cuda_tensors.h"
#include "kernels/fp8.h"
#include "kernels/kernels.h"

namespace optimus {
namespace {

double* step_scalars_of(const at::Tensor& step_scalars) {
  ensure(step_scalars.numel() == kNumStepScalars, "expected {} step scalars, got {}", kNumStepScalars,
         step_scalars.numel());
  return static_cast<double*>(flat_data(step_scalars, at::kDouble));
}

void ensure_same_size(const at::Tensor& tensor, const at::Tensor& like) {
  ensure(!tensor.defined() || tensor.sizes() == like.sizes(), "expected a tensor of {} elements, got {}",
         like.numel(), tensor.defined() ? tensor.numel() : 0);
}

// The fp8 kernels require rows in packs of 16 bytes and whole tiles of 16 x 16.
bool can_quantize(const at::Tensor& x) {
  const bool is_16_bit = x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
  return is_16_bit && x.dim() == 2 && x.size(0) % 16 == 0 && x.size(1) % 16 == 0 && x.stride(1) == 1 &&
         x.size(0) < (1 << 23) && x.numel() < (std::int64_t{1} << 36) && x.stride(0) % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(x.data_ptr()) % 16 == 0;
}

bool is_pack_aligned(const at::Tensor& flat) {
  return !flat.defined() || reinterpret_cast<std::uintptr_t>(flat.data_ptr()) % 16 == 0;
}
cuda::Fp8Pointers fp8_pointers(const Fp8Output& output) {
  return {.y = flat_data(output.y, at::kFloat8_e4m3fn),
          .transposed = flat_data(output.transposed, at::kFloat8_e4m3fn),
          .scale = static_cast<const float*>(flat_data(output.scale, at::kFloat)),
          .maximum = static_cast<std::uint32_t*>(flat_data(output.maximum, at::kFloat))};
}

// table[ids[row]] += values[row]. Additions to a row of the table happen in the order of `ids`.
void add_to_table(const at::Tensor& values, const at::Tensor& ids, at::Tensor& table) {
  if (values.size(0) == 0) return;
  const auto [sorted, order] = at::sort(ids.to(at::kLong), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::ScalarType wide = wide_type(values);
  const at::Tensor workspace =
      at::empty({cuda::scatter_pieces(values.size(0)), 2, values.size(1)}, values.options().dtype(wide));
  const Launch launch(values);
  launch(cuda::add_to_table, {.element = element_of(values),
                              .values = rows_of(values),
                              .table = rows_of(table, wide),
                              .sorted = static_cast<const std::int64_t*>(flat_data(sorted, at::kLong)),
                              .order = static_cast<const std::int64_t*>(flat_data(order, at::kLong)),
                              .workspace = workspace.data_ptr()});
}

// Returns the rows [first_row, first_row + num_rows).
cuda::Rows part_of(cuda::Rows rows, std::int64_t first_row, std::int64_t num_rows, int element_size) {
  if (rows.data == nullptr) return rows;
  rows.data = static_cast<char*>(rows.data) + first_row * rows.outer_stride * element_size;
  rows.num_rows = num_rows;
  return rows;
}

class CudaKernels final : public Kernels {
 public:
  void norm(const NormOptions& options, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
            at::Tensor& y, at::Tensor& statistics) const override {
    if (x.size(-1) > cuda::kMaxNormWidth) return fallback_->norm(options, x, weight, bias, y, statistics);
    ensure_same_size(y, x);
    const at::ScalarType type = x.scalar_type();
    const Launch launch(x);
    launch(cuda::norm, {.element = element_of(x),
                        .is_centered = options.kind == NormKind::layer_norm,
                        .eps = options.eps,
                        .x = rows_of(x),
                        .y = rows_of(y, type),
                        .statistics = rows_of(statistics, wide_type(x)),
                        .weight = flat_data(weight, type),
                        .bias = flat_data(bias, type)});
  }

  void norm_backward(const NormOptions& options, const at::Tensor& dy, const at::Tensor& x,
                     const at::Tensor& weight, const at::Tensor& statistics, const at::Tensor& residual,
                     at::Tensor& dx, at::Tensor& weight_gradient, at::Tensor& bias_gradient) const override {
    if (x.size(-1) > cuda::kMaxNormWidth)
      return fallback_->norm_backward(options, dy, x, weight, statistics, residual, dx, weight_gradient,
                                      bias_gradient);
    launch_norm_backward(
        norm_task(options, dy, x, weight, statistics, residual, dx, weight_gradient, bias_gradient), x);
  }

  void norm_backward_with_sums(const NormOptions& options, const at::Tensor& dy, const at::Tensor& x,
                               const at::Tensor& weight, const at::Tensor& statistics,
                               const at::Tensor& residual, at::Tensor& dx, at::Tensor& weight_gradient,
                               at::Tensor& bias_gradient, StreamSums& sums) const override {
    cuda::NormBackwardTask task =
        norm_task(options, dy, x, weight, statistics, residual, dx, weight_gradient, bias_gradient);
    if (x.size(-1) > cuda::kMaxNormWidth || !cuda::norm_backward_can_sum(task))
      return Kernels::norm_backward_with_sums(options, dy, x, weight, statistics, residual, dx,
                                              weight_gradient, bias_gradient, sums);
    task.residual_sum = flat_data(sums.residual, wide_type(x));
    task.output_sum = flat_data(sums.output, wide_type(x));
    launch_norm_backward(task, x);
  }

  void activation(Activation kind, const at::Tensor& x, const at::Tensor& gate,
                  at::Tensor& y) const override {
    for (const at::Tensor& tensor : {gate, y}) ensure_same_size(tensor, x);
    const at::ScalarType type = x.scalar_type();
    const Launch launch(x);
    cuda::ActivationTask task;
    task.element = element_of(x), task.kind = kind;
    task.x = rows_of(x), task.gate = rows_of(gate, type), task.y = rows_of(y, type);
    launch(cuda::activation, task);
  }

  void activation_backward(Activation kind, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate,
                           at::Tensor& dx, at::Tensor& d_gate) const override {
    for (const at::Tensor& tensor : {dy, gate, dx}) ensure_same_size(tensor, x);
    const at::ScalarType type = x.scalar_type();
    const Launch launch(x);
    cuda::ActivationTask task;
    task.element = element_of(x), task.kind = kind;
    task.x = rows_of(x), task.gate = rows_of(gate, type);
    task.dy = rows_of(dy, type), task.dx = rows_of(dx, type);
    if (gate.defined()) {
      ensure(d_gate.defined() && d_gate.sizes() == x.sizes(),
             "a gated activation needs a tensor for the gradient of its gate");
      task.d_gate = rows_of(d_gate, type);
    }
    launch(cuda::activation_backward, task);
  }

  void rope(at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, const at::Tensor& positions,
            bool is_backward) const override {
    ensure(x.dim() == 3 && x.size(2) == 2 * cosine.size(1) && positions.numel() == x.size(0),
           "rotary embedding: expected half as many angles as the head dimension {}, got {}", x.size(-1),
           cosine.size(1));
    if (x.numel() == 0) return;
    const Launch launch(x);
    launch(cuda::rope, {.element = element_of(x),
                        .x = rows_of(x),
                        .cosine = flat_data(cosine, wide_type(x)),
                        .sine = flat_data(sine, wide_type(x)),
                        .positions = static_cast<const std::int32_t*>(flat_data(positions, at::kInt)),
                        .num_positions = cosine.size(0),
                        .is_backward = is_backward});
  }

  void embedding(const at::Tensor& ids, const at::Tensor& position_ids, const at::Tensor& tokens,
                 const at::Tensor& positions, const at::Tensor& types, at::Tensor& out) const override {
    ensure(ids.numel() == out.size(0), "got {} ids for {} output rows", ids.numel(), out.size(0));
    const at::ScalarType type = out.scalar_type();
    const Launch launch(out);
    cuda::EmbeddingTask task;
    task.element = element_of(out);
    task.ids = static_cast<const std::int64_t*>(flat_data(ids, at::kLong));
    if (positions.defined())
      task.position_ids = static_cast<const std::int32_t*>(flat_data(position_ids, at::kInt));
    task.tokens = rows_of(tokens, type), task.positions = rows_of(positions, type);
    task.types = rows_of(types, type), task.out = rows_of(out);
    launch(cuda::embedding, task);
  }

  void embedding_backward(const at::Tensor& dout, const at::Tensor& ids, const at::Tensor& position_ids,
                          at::Tensor& tokens, at::Tensor& positions, at::Tensor& types) const override {
    const c10::cuda::CUDAGuard guard(dout.device());
    if (tokens.defined()) add_to_table(dout, ids, tokens);
    if (positions.defined()) add_to_table(dout, position_ids, positions);
    if (!types.defined()) return;
    at::Tensor first = types.select(0, 0);
    add_rows(dout, first);
  }

  void cross_entropy(at::Tensor& logits, const at::Tensor& targets, at::Tensor& losses,
                     double gradient_scale) const override {
    ensure(targets.numel() == logits.size(0) && losses.numel() == logits.size(0),
           "got {} targets for {} rows of logits", targets.numel(), logits.size(0));
    const Launch launch(logits);
    launch(cuda::cross_entropy, {.element = element_of(logits),
                                 .logits = rows_of(logits),
                                 .targets = static_cast<const std::int64_t*>(flat_data(targets, at::kLong)),
                                 .losses = flat_data(losses, wide_type(logits)),
                                 .gradient_scale = gradient_scale});
  }

  void loss_statistics(const at::Tensor& logits, const at::Tensor& targets,
                       at::Tensor& statistics) const override {
    fallback_->loss_statistics(logits, targets, statistics);
  }
  void loss_gradient(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& logsumexp,
                     double gradient_scale) const override {
    fallback_->loss_gradient(logits, targets, logsumexp, gradient_scale);
  }

  void add(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
           const DropoutSite& dropout, at::Tensor& y) const override {
    for (const at::Tensor& tensor : {residual, y}) ensure_same_size(tensor, x);
    const at::ScalarType type = x.scalar_type();
    const Launch launch(x);
    cuda::AddTask task;
    task.element = element_of(x);
    task.x = rows_of(x), task.residual = rows_of(residual, type), task.y = rows_of(y, type);
    task.bias = flat_data(bias, type);
    if (dropout.rate == 0) return launch(cuda::add, task, {});
    add_with_dropout(launch, task, dropout);
  }

  void dropout_backward(const at::Tensor& dy, const DropoutSite& dropout, at::Tensor& dx) const override {
    add(dy, {}, {}, dropout, dx);
  }

  void add_rows(const at::Tensor& x, at::Tensor& sum) const override {
    const at::ScalarType wide = wide_type(x);
    const Launch launch(x);
    const cuda::Rows rows = rows_of(x);
    ensure(sum.numel() == rows.width, "column sums: expected {} columns, got {}", sum.numel(), rows.width);
    const at::Tensor workspace = at::empty({cuda::sum_parts(launch.queue(), element_of(x), rows), rows.width},
                                           x.options().dtype(wide));
    launch(cuda::add_rows, element_of(x), rows, flat_data(sum, wide), workspace.data_ptr());
  }

  void add_square_sum(const at::Tensor& flat, at::Tensor& sum) const override {
    ensure(sum.numel() == 1, "square sum: expected one element, got {}", sum.numel());
    const Launch launch(flat);
    const at::Tensor workspace = at::empty({cuda::kSquareParts}, flat.options().dtype(at::kDouble));
    launch(cuda::add_square_sum, element_of(flat), flat_data(flat, flat.scalar_type()), flat.numel(),
           static_cast<double*>(flat_data(sum, at::kDouble)), workspace.data_ptr<double>());
  }

  void pass_gate(const GateOptions& options, at::Tensor& step_scalars) const override {
    const Launch launch(step_scalars);
    launch(cuda::pass_gate, options, step_scalars_of(step_scalars));
  }

  void adamw(const AdamOptions& options, const at::Tensor& step_scalars, const at::Tensor& gradient,
             at::Tensor& master, at::Tensor& first_moment, at::Tensor& second_moment,
             at::Tensor& weight) const override {
    for (const at::Tensor& tensor : {gradient, first_moment, second_moment, weight})
      ensure_same_size(tensor, master);
    const at::ScalarType wide = wide_type(weight);
    const Launch launch(master);
    launch(cuda::adamw, {.element = element_of(weight),
                         .beta1 = options.beta1,
                         .beta2 = options.beta2,
                         .epsilon = options.epsilon,
                         .weight_decay = options.weight_decay,
                         .step_scalars = step_scalars_of(step_scalars),
                         .count = master.numel(),
                         .gradient = flat_data(gradient, wide),
                         .master = flat_data(master, wide),
                         .first = flat_data(first_moment, wide),
                         .second = flat_data(second_moment, wide),
                         .weight = flat_data(weight, weight.scalar_type())});
  }

  void quantize(Fp8Operand operand, const at::Tensor& x, const at::Tensor& scale, at::Tensor& y,
                at::Tensor& transposed, at::Tensor& maximum) const override {
    if (!can_quantize(x)) return Kernels::quantize(operand, x, scale, y, transposed, maximum);
    const at::ScalarType fp8_scalar_type = fp8_type(operand);
    ensure_same_size(y, x);
    const Launch launch(x);
    launch(cuda::quantize,
           {.element = element_of(x),
            .format = operand == Fp8Operand::gradient ? cuda::Fp8Format::e5m2 : cuda::Fp8Format::e4m3,
            .x = rows_of(x),
            .y = flat_data(y, fp8_scalar_type),
            .transposed = flat_data(transposed, fp8_scalar_type),
            .scale = static_cast<const float*>(flat_data(scale, at::kFloat)),
            .maximum = static_cast<std::uint32_t*>(flat_data(maximum, at::kFloat))});
  }
  void quantize_activation_gradient(Activation kind, const at::Tensor& dy, const at::Tensor& x,
                                    const at::Tensor& gate, const at::Tensor& scale, at::Tensor& y,
                                    at::Tensor& transposed, at::Tensor& maximum,
                                    at::Tensor& sum) const override {
    const bool is_supported = x.scalar_type() == at::kBFloat16 && can_quantize(dy) && can_quantize(x) &&
                              (!gate.defined() || (can_quantize(gate) && !sum.defined())) && y.defined() &&
                              transposed.defined();
    if (!is_supported)
      return Kernels::quantize_activation_gradient(kind, dy, x, gate, scale, y, transposed, maximum, sum);
    for (const at::Tensor& tensor : {dy, gate}) ensure_same_size(tensor, x);
    const at::Tensor workspace =
        sum.defined() ? at::empty({cuda::quantize_activation_gradient_parts(x.size(0)), x.size(1)},
                                  x.options().dtype(at::kFloat))
                      : at::Tensor();
    const Launch launch(x);
    launch(cuda::quantize_activation_gradient,
           {.kind = kind,
            .dy = rows_of(dy, at::kBFloat16),
            .x = rows_of(x),
            .gate = rows_of(gate, at::kBFloat16),
            .y = flat_data(y, at::kFloat8_e5m2),
            .transposed = flat_data(transposed, at::kFloat8_e5m2),
            .scale = static_cast<const float*>(flat_data(scale, at::kFloat)),
            .maximum = static_cast<std::uint32_t*>(flat_data(maximum, at::kFloat)),
            .sum = static_cast<float*>(flat_data(sum, at::kFloat)),
            .workspace = static_cast<float*>(flat_data(workspace, at::kFloat))});
  }
  void norm_to_fp8(const NormOptions& options, const at::Tensor& x, const at::Tensor& weight,
                   const at::Tensor& bias, at::Tensor& statistics, Fp8Output& output) const override {
    const bool is_supported = x.scalar_type() == at::kBFloat16 && can_quantize(x) &&
                              !output.transposed.defined() && x.size(1) <= cuda::kMaxNormWidth &&
                              is_pack_aligned(weight) && is_pack_aligned(bias);
    if (!is_supported) return Kernels::norm_to_fp8(options, x, weight, bias, statistics, output);
    ensure_same_size(output.y, x);
    const Launch launch(x);
    launch(cuda::norm_to_fp8,
           {.element = element_of(x),
            .is_centered = options.kind == NormKind::layer_norm,
            .eps = options.eps,
            .x = rows_of(x),
            .y = {},
            .statistics = rows_of(statistics, at::kFloat),
            .weight = flat_data(weight, at::kBFloat16),
            .bias = flat_data(bias, at::kBFloat16)},
           fp8_pointers(output));
  }
  void activation_to_fp8(Activation kind, const at::Tensor& x, const at::Tensor& gate,
                         Fp8Output& output) const override {
    const bool is_supported = x.scalar_type() == at::kBFloat16 && can_quantize(x) &&
                              (!gate.defined() || can_quantize(gate)) && output.transposed.defined();
    if (!is_supported) return Kernels::activation_to_fp8(kind, x, gate, output);
    for (const at::Tensor& tensor : {gate, output.y}) ensure_same_size(tensor, x);
    const Launch launch(x);
    cuda::ActivationTask task;
    task.element = element_of(x), task.kind = kind;
    task.x = rows_of(x), task.gate = rows_of(gate, at::kBFloat16);
    launch(cuda::activation_to_fp8, task, fp8_pointers(output));
  }
  void transpose_fp8(const at::Tensor& from, at::Tensor& to) const override {
    const bool is_supported =
        from.size(0) % 16 == 0 && from.size(1) % 16 == 0 && is_pack_aligned(from) && is_pack_aligned(to);
    if (!is_supported) return Kernels::transpose_fp8(from, to);
    const Launch launch(from);
    launch(cuda::transpose_fp8, flat_data(from, from.scalar_type()), from.size(0), from.size(1),
           flat_data(to, from.scalar_type()));
  }
  // For any pair of types, ATen's copy is a single vectorized pass.
  void convert(const at::Tensor& from, at::Tensor& to) const override { to.copy_(from); }

 private:
  static cuda::NormBackwardTask norm_task(const NormOptions& options, const at::Tensor& dy,
                                          const at::Tensor& x, const at::Tensor& weight,
                                          const at::Tensor& statistics, const at::Tensor& residual,
                                          const at::Tensor& dx, const at::Tensor& weight_gradient,
                                          const at::Tensor& bias_gradient) {
    for (const at::Tensor& tensor : {dy, residual, dx}) ensure_same_size(tensor, x);
    const at::ScalarType type = x.scalar_type(), wide = wide_type(x);
    cuda::NormBackwardTask task;
    task.element = element_of(x), task.is_centered = options.kind == NormKind::layer_norm;
    task.dy = rows_of(dy, type), task.x = rows_of(x), task.residual = rows_of(residual, type);
    task.dx = rows_of(dx, type), task.statistics = rows_of(statistics, wide);
    task.weight = flat_data(weight, type), task.weight_gradient = flat_data(weight_gradient, wide);
    if (task.is_centered) task.bias_gradient = flat_data(bias_gradient, wide);
    return task;
  }
  static void launch_norm_backward(cuda::NormBackwardTask task, const at::Tensor& x) {
    const Launch launch(x);
    const at::Tensor workspace =
        at::empty({cuda::norm_backward_workspace(launch.queue(), task)}, x.options().dtype(wide_type(x)));
    task.workspace = workspace.data_ptr();
    launch(cuda::norm_backward, task);
  }
  // The dropout keys of the sequences are kernel arguments, so that no launch waits for a copy to the device.
  static void add_with_dropout(const Launch& launch, const cuda::AddTask& full_task,
                               const DropoutSite& dropout) {
    const std::int64_t length = dropout.sequence_length, num_sequences = std::ssize(dropout.samples);
    const std::int64_t begin = dropout.first_row, end = begin + full_task.x.num_rows;
    ensure(length > 0 && end <= length * num_sequences,
           "dropout: {} rows starting at {} exceed {} sequences of length {}", full_task.x.num_rows, begin,
           num_sequences, length);
    for (std::int64_t sequence = begin / length; sequence * length < end; sequence += cuda::kMaxDropoutKeys) {
      cuda::DropoutKeys keys;
      const std::int64_t count = std::min<std::int64_t>(cuda::kMaxDropoutKeys, num_sequences - sequence);
      for (std::int64_t i = 0; i < count; ++i)
        keys.of[i] =
            dropout.key
                .derive(static_cast<std::uint64_t>(dropout.samples[static_cast<std::size_t>(sequence + i)]))
                .value;
      const std::int64_t row = std::max(begin, sequence * length),
                         num_rows = std::min((sequence + count) * length, end) - row;
      cuda::AddTask task = full_task;
      const int size = cuda::size_of(task.element);
      task.x = part_of(full_task.x, row - begin, num_rows, size),
      task.y = part_of(full_task.y, row - begin, num_rows, size);
      task.residual = part_of(full_task.residual, row - begin, num_rows, size);
      task.rate = dropout.rate, task.sequence_length = length, task.first_row = row - sequence * length;
      const PositionMap& map = dropout.positions;
      task.first_position = map.first_position, task.jump_at = std::min(map.jump_at, length),
      task.jump = map.jump;
      launch(cuda::add, task, keys);
    }
  }

  // Used for rows that do not fit into registers and for vocabularies that are split over devices.
  std::unique_ptr<Kernels> fallback_ = make_plain_kernels();
};

}  // namespace

std::unique_ptr<Kernels> make_cuda_kernels() { return std::make_unique<CudaKernels>(); }

}  // namespace optimus
#endif
