// ModelWork: the operations of a model in the form that the cost model needs. GEMMs that engines execute as
// one (q|k|v, gate|up) are fused, and each operation records the part of the block to which it belongs. A
// ModelWork is built once per model and sequence length.
#pragma once

#include <string>
#include <vector>

#include "model/operations.h"
#include "schedule/program.h"

namespace optimus {

struct WorkItem {
  OperationKind kind = OperationKind::gemm;
  SplitUnit split = SplitUnit::none;
  Part part = Part::whole;  // attention, mlp, router, experts, or whole
  // The part with context parallelism. For attention, it is attention_input, attention_ring_step or
  // attention_output. Otherwise, it is equal to `part`.
  Part ring_part = Part::whole;
  double inner = 0, outer = 0;  // GEMMs: input and output features
  // For GEMMs of experts, the number of experts and the number of experts that process each token.
  double experts = 1, passes = 1;
  double forward_flops = 0, backward_flops = 0;  // of attention and custom blocks, per token
  double accessed_elements = 0;                  // elements read or written in memory per token
  std::string kernel = {};                       // inexpensive operations: name of the table in KernelTimes
  double width = 0;                              // elements per token that the kernel processes
  bool fuses_residual_add = false;               // GEMMs: the kernel adds its result to the residual stream
  // The result is the output of the layer, and no other operation in the layer reads it.
  bool ends_layer = false;
  bool has_bias = false;  // GEMMs: adds a bias
  bool is_recomputed_by_selective = false;
};

struct ModelWork {
  std::vector<std::vector<WorkItem>> patterns;  // operations, indexed by block pattern
  double query_width = 0, head_dim = 1, sequence_length = 1;
  bool is_causal = true;
};

ModelWork work_of(const ModelSpec& model, std::int64_t sequence_length);

// The largest fraction of a dimension that any of `tp` tensor-parallel ranks gets if the dimension is split
// in units of `unit`.
double share_of_part(const ModelSpec& model, SplitUnit unit, int tp);

}  // namespace optimus
