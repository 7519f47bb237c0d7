// See model_work.h.
#include "cost/model_work.h"

#include <algorithm>

#include "base/text.h"

namespace optimus {
namespace {

bool joins_previous_gemm(const std::string& name, const ModelSpec& model) {
  return name == "attention.k" || name == "attention.v" || (name == "mlp.up" && model.is_gated) ||
         name == "experts.up" || name == "shared.up";
}

bool has_bias(const ModelSpec& model, const std::string& gemm) {
  if (gemm == "attention.out") return model.has_out_bias;
  if (gemm.starts_with("attention.")) return model.has_qkv_bias;
  if (gemm.starts_with("mlp.")) return model.has_mlp_bias;
  return model.is_bert();  // the output bias of BERT's head
}

// Sets the name of the engine's kernel for an inexpensive operation and the number of elements per token that
// the kernel processes.
void name_kernel(const ModelSpec& model, const Operation& op, WorkItem& item) {
  switch (op.kind) {
    case OperationKind::norm:
      item.kernel = model.norm == NormKind::layer_norm ? "norm.layer_norm" : "norm.rms_norm";
      item.width = op.accessed_elements / 2;
      break;
    case OperationKind::activation: {
      const bool is_gated = model.is_gated && op.split == SplitUnit::ffn;
      item.kernel = "activation." + text(model.activation) + (is_gated ? ".gated" : "");
      item.width = op.accessed_elements / (is_gated ? 3 : 2);
      break;
    }
    case OperationKind::rope:
      item.kernel = "rope", item.width = op.accessed_elements / 2;
      break;
    case OperationKind::residual:
      item.kernel = "add", item.width = static_cast<double>(model.hidden);
      break;
    case OperationKind::embedding:
      item.kernel = "embedding", item.width = static_cast<double>(model.hidden);
      break;
    case OperationKind::loss:
      item.kernel = "loss", item.width = static_cast<double>(model.vocab);
      break;
    case OperationKind::gemm:
    case OperationKind::attention:
    case OperationKind::routing:
    case OperationKind::custom:
      break;
  }
}

std::vector<WorkItem> items_of(const ModelSpec& model, int block, std::int64_t sequence_length) {
  std::vector<WorkItem> items;
  const bool is_layer = block_kind(model, block) == BlockKind::layer;
  bool is_mlp = false, is_after_core = false;
  for (const Operation& op : operations(model, block, sequence_length)) {
    if (op.kind == OperationKind::gemm && joins_previous_gemm(op.name, model)) {
      const auto gemm = std::find_if(items.rbegin(), items.rend(),
                                     [](const WorkItem& item) { return item.kind == OperationKind::gemm; });
      gemm->outer += static_cast<double>(op.outer);
      continue;
    }
    WorkItem item{.kind = op.kind, .split = op.split};
    item.inner = static_cast<double>(op.inner), item.outer = static_cast<double>(op.outer);
    item.experts = static_cast<double>(op.experts), item.passes = static_cast<double>(op.passes);
    item.forward_flops = op.forward_flops;
    item.backward_flops = op.backward_flops + op.attention_recompute_flops;
    item.accessed_elements = op.accessed_elements;
    item.is_recomputed_by_selective = op.is_recomputed_by_selective;
    item.has_bias = op.kind == OperationKind::gemm && has_bias(model, op.name);
    item.fuses_residual_add = op.name == "attention.out" || op.name == "mlp.down";
    item.ends_layer =
        model.norm_position == NormPosition::pre && (op.name == "mlp.down" || op.name == "residual2");
    name_kernel(model, op, item);
    if (is_layer) {
      const bool is_core = op.kind == OperationKind::attention;
      const Part second_part = !is_mixture_block(model, block)    ? Part::mlp
                               : starts_with(op.name, "experts.") ? Part::experts
                                                                  : Part::router;
      item.part = is_mlp ? second_part : Part::attention;
      item.ring_part = is_mlp          ? second_part
                       : is_core       ? Part::attention_ring_step
                       : is_after_core ? Part::attention_output
                                       : Part::attention_input;
      is_after_core |= is_core;
      is_mlp |= op.name == "residual1";
    }
    items.push_back(item);
  }
  return items;
}

}  // namespace

ModelWork work_of(const ModelSpec& model, std::int64_t sequence_length) {
  ModelWork model_work;
  model_work.query_width = static_cast<double>(model.query_width());
  model_work.head_dim = std::max(1.0, static_cast<double>(model.head_dim));
  model_work.sequence_length = static_cast<double>(sequence_length);
  model_work.is_causal = model.is_causal;
  for (int p = 0; p < num_patterns(model); ++p) {
    const int block = first_of_pattern(model, p);
    model_work.patterns.push_back(block < 0 ? std::vector<WorkItem>{}
                                            : items_of(model, block, sequence_length));
  }
  return model_work;
}

double share_of_part(const ModelSpec& model, SplitUnit unit, int tp) {
  if (tp == 1 || unit == SplitUnit::none) return 1;
  const std::int64_t units = num_units(model, unit);
  return static_cast<double>((units + tp - 1) / tp) / static_cast<double>(units);
}

}  // namespace optimus
