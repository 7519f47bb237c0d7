// See measured_cost.h.
#include "cost/measured_cost.h"

#include <algorithm>

namespace optimus {
namespace {

// Seconds taken by an fp8 GEMM, including the casts of its operands. The inputs of q|k|v, up and down need no
// cast if the norm or activation function directly before the GEMM writes them in fp8. The backward pass of
// the activation function also writes the output gradient of up in fp8 (engine/layer_block.cpp).
double fp8_gemm_seconds(const KernelTimes& times, const MeasuredTask& task) {
  const WorkItem& item = task.item;
  const double inner = item.inner, outer = item.outer * task.fraction, work = 2 * task.rows * inner * outer;
  const bool can_be_fused = !task.has_current_scaling;
  const bool is_down = can_be_fused && item.part == Part::mlp && item.fuses_residual_add,
             is_up = can_be_fused && item.part == Part::mlp && !item.fuses_residual_add;
  const bool is_written_in_fp8 = is_down || (can_be_fused && !item.fuses_residual_add && !task.is_post_norm);
  const auto gemm = [&](const char* name) { return times.seconds(name, work, {task.rows, inner, outer}); };
  const auto elementwise = [&](const char* name, double elements) {
    return times.seconds(name, elements, {elements});
  };
  const double inputs = task.rows * inner, gradients = task.rows * outer;
  // The pass that finds the amax reads two bytes per element, whereas a cast reads two bytes and writes one.
  const auto maximum_pass = [&](double elements) {
    return task.has_current_scaling ? elementwise("cast", elements) * 2 / 3 : 0;
  };
  switch (task.op) {
    case Op::backward_input:
      return gemm("narrow.input") + (is_up ? 0 : elementwise("cast.both", gradients)) +
             maximum_pass(gradients);
    case Op::backward_weight: {
      const char* const cast = is_written_in_fp8 ? "cast.transpose" : "cast.turned";
      return gemm("narrow.weight") + (is_down ? 0 : elementwise(cast, inputs)) + maximum_pass(inputs) +
             (item.has_bias && !is_up ? std::max(0.0, elementwise("bias", gradients)) : 0);
    }
    default:
      return gemm("narrow.product") + (is_written_in_fp8 ? 0 : elementwise("cast", inputs)) +
             maximum_pass(inputs);
  }
}

double gemm_seconds(const KernelTimes& times, const MeasuredTask& task) {
  const WorkItem& item = task.item;
  if (task.is_low_precision && times.tables.contains("narrow.product")) return fp8_gemm_seconds(times, task);
  // If the output is split (heads, ffn, vocabulary), each tensor-parallel rank computes its share. If the
  // input is split instead, the amount of work is the same.
  const double inner = item.inner, outer = item.outer * task.fraction;
  // Logits are computed for one slice of tokens at a time, so the GEMM has fewer rows.
  const double rows = item.split == SplitUnit::vocab
                          ? static_cast<double>(logit_rows(static_cast<std::int64_t>(task.rows)))
                          : task.rows;
  const double multiply_adds = 2 * task.rows * inner * outer;
  if (task.op == Op::backward_input)
    return times.seconds("product.input", multiply_adds, {rows, inner, outer});
  if (task.op != Op::backward_weight)
    return times.seconds(item.fuses_residual_add ? "product.add" : "product", multiply_adds,
                         {rows, inner, outer});
  const double gemm = times.seconds("product.weight", multiply_adds, {rows, inner, outer});
  if (gemm < 0 || !item.has_bias) return gemm;
  const double elements = task.rows * outer;
  return gemm + std::max(0.0, times.seconds("bias", elements, {elements}));
}

double pointwise_seconds(const KernelTimes& times, const MeasuredTask& task) {
  const WorkItem& item = task.item;
  const bool is_forward = task.op == Op::forward || task.op == Op::recompute;
  const double elements = task.rows * item.width * task.fraction;
  const bool writes_fp8 =
      task.is_low_precision && !task.has_current_scaling &&
      (item.kind == OperationKind::activation || (item.kind == OperationKind::norm && !task.is_post_norm));
  const auto kernel_seconds = [&](const std::string& ending) {
    const double fp8_seconds =
        writes_fp8 ? times.seconds(item.kernel + ".narrow" + ending, elements, {elements}) : -1;
    return fp8_seconds >= 0 ? fp8_seconds : times.seconds(item.kernel + ending, elements, {elements});
  };
  const auto forward = [&] { return kernel_seconds(""); };
  const auto backward = [&] { return kernel_seconds(".backward"); };
  switch (item.kind) {
    case OperationKind::embedding:
      return task.op == Op::backward_weight ? backward() : is_forward ? forward() : 0;
    case OperationKind::loss:  // the forward pass also computes the gradient
      return is_forward ? forward() : 0;
    // The backward pass of norms adds the gradients of both branches. With post-norm, the gradients are
    // copied after each sum.
    case OperationKind::residual:
      return is_forward || (task.op == Op::backward_input && task.is_post_norm) ? forward() : 0;
    case OperationKind::rope:
      return task.op == Op::backward_weight ? 0 : forward();
    case OperationKind::norm:
    case OperationKind::activation:
      return task.op == Op::backward_weight ? 0 : is_forward ? forward() : backward();
    case OperationKind::gemm:
    case OperationKind::attention:
    case OperationKind::routing:
    case OperationKind::custom:
      break;
  }
  return -1;
}

}  // namespace

double measured_seconds(const KernelTimes& times, const MeasuredTask& task) {
  if (task.item.kind == OperationKind::gemm) return gemm_seconds(times, task);
  if (task.item.kind != OperationKind::attention) return pointwise_seconds(times, task);
  if (task.op == Op::backward_weight) return 0;
  const bool is_backward = task.op == Op::backward_input;
  const double flops =
      (is_backward ? task.item.backward_flops : task.item.forward_flops) * task.fraction * task.rows;
  const std::string name = task.is_causal ? "attention" : "attention.whole";
  return times.seconds(is_backward ? name + ".backward" : name, flops, {task.length, task.head_dim});
}

}  // namespace optimus
