// Caches the keys and values of all previous tokens of one sequence, so that generation computes each token
// only once.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/device.h"
#include "model/spec.h"

namespace optimus {

class KeyValueCache {
 public:
  KeyValueCache(const ModelSpec& model, std::int64_t max_length, ElementTypes types, at::Device device);
  // Appends `k` and `v`, [new tokens, kv_heads, head_dim], of one layer. Each query in `q`, [new tokens,
  // heads, head_dim], then attends to all cached positions up to its own, and the result is written to `out`.
  // Call attend() with the same tokens for every layer, then call advance().
  void attend(int layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::Tensor& out);
  void advance(std::int64_t num_tokens) { length_ += num_tokens; }
  std::int64_t length() const { return length_; }

 private:
  const ModelSpec& model_;
  std::vector<at::Tensor> keys_, values_;  // [layer], each [max_length, kv_heads, head_dim]
  std::int64_t length_ = 0;
};

}  // namespace optimus
