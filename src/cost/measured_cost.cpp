// See measured_cost.h.
#include "cost/measured_cost.h"

#include <algorithm>

namespace optimus {
namespace {

double product_seconds(const KernelTimes& times, const MeasuredTask& task) {
  const WorkItem& item = task.item;
  // Of an output that is cut (heads, ffn, vocabulary) a part is computed; of an input that is cut likewise: same work.
  const double inner = item.inner, outer = item.outer * task.share;
  // Logits are made for some tokens at a time.
  const double rows = item.cut == CutUnit::vocab
                          ? static_cast<double>(logit_rows(static_cast<std::int64_t>(task.rows)))
                          : task.rows;
  const double work = 2 * task.rows * inner * outer;
  if (task.op == Op::backward_input) return times.seconds("product.input", work, {rows, inner, outer});
  if (task.op != Op::backward_weight)
    return times.seconds(item.adds_to_stream ? "product.add" : "product", work, {rows, inner, outer});
  const double product = times.seconds("product.weight", work, {rows, inner, outer});
  if (product < 0 || !item.has_bias) return product;
  const double elements = task.rows * outer;
  return product + std::max(0.0, times.seconds("bias", elements, {elements}));
}

double cheap_seconds(const KernelTimes& times, const MeasuredTask& task) {
  const WorkItem& item = task.item;
  const bool is_forward = task.op == Op::forward || task.op == Op::recompute;
  const double elements = task.rows * item.width * task.share;
  const auto forward = [&] { return times.seconds(item.kernel, elements, {elements}); };
  const auto backward = [&] { return times.seconds(item.kernel + ".backward", elements, {elements}); };
  switch (item.kind) {
    case OperationKind::embedding:
      return task.op == Op::backward_weight ? backward() : is_forward ? forward() : 0;
    case OperationKind::loss:  // together with its gradient
      return is_forward ? forward() : 0;
    case OperationKind::residual:  // gradients go through norms, which add; behind the sums they are copied
      return is_forward || (task.op == Op::backward_input && task.is_post_norm) ? forward() : 0;
    case OperationKind::rope:
      return task.op == Op::backward_weight ? 0 : forward();
    case OperationKind::norm:
    case OperationKind::activation:
      return task.op == Op::backward_weight ? 0 : is_forward ? forward() : backward();
    case OperationKind::product:
    case OperationKind::attention:
    case OperationKind::routing:
    case OperationKind::custom:
      break;
  }
  return -1;
}

}  // namespace

double measured_seconds(const KernelTimes& times, const MeasuredTask& task) {
  if (task.item.kind == OperationKind::product) return product_seconds(times, task);
  if (task.item.kind != OperationKind::attention) return cheap_seconds(times, task);
  if (task.op == Op::backward_weight) return 0;
  const bool is_backward = task.op == Op::backward_input;
  const double flops =
      (is_backward ? task.item.backward_flops : task.item.forward_flops) * task.share * task.rows;
  const std::string name = task.is_causal ? "attention" : "attention.whole";
  return times.seconds(is_backward ? name + ".backward" : name, flops, {task.length, task.head_dim});
}

}  // namespace optimus
