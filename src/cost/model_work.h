// ModelWork: a model's operations as the cost model wants them: products that engines run as one (q|k|v, gate|up) joined,
// each operation with the part of its block that it belongs to. Made once for a model and sequence length.
#pragma once

#include <string>
#include <vector>

#include "model/operations.h"
#include "schedule/program.h"

namespace optimus {

struct WorkItem {
  OperationKind kind = OperationKind::product;
  CutUnit cut = CutUnit::none;
  Part part = Part::whole;  // attention, mlp, router, experts, or whole
  Part ring_part =
      Part::whole;  // with a context ring: attention_input, attention_hop, attention_output, or as part
  double inner = 0, outer = 0;     // products
  double experts = 1, passes = 1;  // products of a mixture's experts: matrices, and those a token meets
  double forward_flops = 0, backward_flops = 0;  // attention and custom blocks, a token
  double moved_elements = 0;                     // a token
  std::string kernel = {};                       // of cheap operations: their table in KernelTimes
  double width = 0;                              // elements a token that they are applied to
  bool adds_to_stream = false;                   // products: the stream is added inside
  bool ends_layer = false;                       // its result is the layer's output alone
  bool has_bias = false;                         // products
  bool is_recomputed_by_selective = false;
};

struct ModelWork {
  std::vector<std::vector<WorkItem>> patterns;  // [pattern of block]
  double query_width = 0, head_dim = 1, sequence_length = 1;
  bool is_causal = true;
};

ModelWork work_of(const ModelSpec& model, std::int64_t sequence_length);

// What one of tp parts has of a dimension cut in `unit`: the largest part's share.
double share_of_part(const ModelSpec& model, CutUnit unit, int tp);

}  // namespace optimus
