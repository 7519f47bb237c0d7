// One device's part of a layer. Under tensor parallelism, it consists of the device's heads, columns and
// vocabulary rows. With sequence parallelism, it also includes the device's tokens between GEMMs. Under
// context parallelism, it includes the device's positions. A single device has everything.
#pragma once

#include <vector>

#include "base/box.h"
#include "plan/layouts.h"
#include "plan/plan.h"

namespace optimus {

struct TensorPart {
  int tp = 1, part = 0;
  int cp = 1, context = 0;  // context: index of this device's context part
  bool is_sequence_parallel = false;
  Span heads{}, kv_heads{}, vocab{};

  bool is_alone() const { return tp == 1; }
  bool is_first() const { return part == 0; }
  // slice() returns which of a micro-batch's `tokens` tokens this part has. Without sequence parallelism
  // these are all tokens. padded_slice() returns the number of tokens of a slice including padding, which is
  // equal for all parts.
  Span slice(std::int64_t tokens) const {
    return is_sequence_parallel ? shard_span(tokens, tp, part) : Span{0, tokens};
  }
  std::int64_t padded_slice(std::int64_t tokens) const { return shard_span(tokens, tp, 0).size(); }
};

inline TensorPart tensor_part(const ModelSpec& model, const LayerStrategy& strategy, int index) {
  TensorPart part{.tp = strategy.tp, .part = index % strategy.tp};
  part.cp = strategy.cp, part.context = index / strategy.tp % strategy.cp;
  part.is_sequence_parallel = strategy.sequence_parallel;
  if (model.is_custom()) return part;
  const auto own_span = [&](SplitUnit unit) {
    return tensor_parts(model, unit, strategy.tp)[static_cast<std::size_t>(part.part)];
  };
  const Span heads = own_span(SplitUnit::heads), kv_heads = own_span(SplitUnit::kv_heads);
  part.heads = {heads.begin / model.head_dim, heads.end / model.head_dim};
  part.kv_heads = {kv_heads.begin / model.head_dim, kv_heads.end / model.head_dim};
  part.vocab = own_span(SplitUnit::vocab);
  return part;
}

// A range of query heads that attention can process in one call, because the same number of query heads
// shares each key/value head. A part has several ranges if it begins or ends inside the group of a key/value
// head. Indices are relative to the first head of the part.
struct HeadRange {
  std::int64_t first_head = 0, count = 0, first_kv = 0, num_kv = 0;
};
inline std::vector<HeadRange> head_ranges(const ModelSpec& model, const TensorPart& part) {
  const std::int64_t group = model.heads / model.kv_heads;
  std::vector<HeadRange> runs;
  for (std::int64_t head = part.heads.begin; head < part.heads.end;) {
    const std::int64_t kv = head / group, end = std::min((kv + 1) * group, part.heads.end),
                       count = end - head;
    HeadRange* last = runs.empty() ? nullptr : &runs.back();
    if (last != nullptr && last->count / last->num_kv == count)
      last->count += count, last->num_kv += 1;
    else
      runs.push_back({head - part.heads.begin, count, kv - part.kv_heads.begin, 1});
    head = end;
  }
  return runs;
}

}  // namespace optimus
