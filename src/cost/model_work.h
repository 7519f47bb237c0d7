// ModelWork: the operations of a model in the form that the cost model needs. GEMMs that engines execute as
// one (q|k|v, gate|up) are joined, and each operation carries the part of its block. Built once per model and
// sequence length.
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
  Part ring_part =
      // with a context ring: attention_input, attention_ring_step, attention_output; otherwise same as part
      Part::whole;
  double inner = 0, outer = 0;  // GEMMs
  // GEMMs of experts: number of matrices, and of those that process each token
  double experts = 1, passes = 1;
  double forward_flops = 0, backward_flops = 0;  // attention and custom blocks, per token
  double moved_elements = 0;                     // per token
  std::string kernel = {};                       // inexpensive operations: their table in KernelTimes
  double width = 0;                              // elements per token that they are applied to
  bool adds_to_stream = false;                   // GEMMs: the residual stream is added in the kernel
  bool ends_layer = false;                       // its result alone is the output of the layer
  bool has_bias = false;                         // GEMMs
  bool is_recomputed_by_selective = false;
};

struct ModelWork {
  std::vector<std::vector<WorkItem>> patterns;  // [pattern of block]
  double query_width = 0, head_dim = 1, sequence_length = 1;
  bool is_causal = true;
};

ModelWork work_of(const ModelSpec& model, std::int64_t sequence_length);

// The fraction that one of tp parts has of a dimension cut in `unit`, for the largest part.
double share_of_part(const ModelSpec& model, SplitUnit unit, int tp);

}  // namespace optimus
