// Keys and values of the tokens that one sequence has had so far, so that generation computes each token once.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/device.h"
#include "model/spec.h"

namespace optimus {

class KeyValueCache {
 public:
  KeyValueCache(const ModelSpec& model, std::int64_t max_length, ElementTypes types, at::Device device);
  // Appends k, v [new tokens, kv_heads, head_dim] of one layer and lets q [new tokens, heads, head_dim] attend to all that is
  // there up to its own position. Every layer gets the same tokens; advance() ends them.
  void attend(int layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::Tensor& out);
  void advance(std::int64_t num_tokens) { length_ += num_tokens; }
  std::int64_t length() const { return length_; }

 private:
  const ModelSpec& model_;
  std::vector<at::Tensor> keys_, values_;  // [layer], each [max_length, kv_heads, head_dim]
  std::int64_t length_ = 0;
};

}  // namespace optimus
