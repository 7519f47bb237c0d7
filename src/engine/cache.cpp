// See cache.h.
#include "engine/cache.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace optimus {

KeyValueCache::KeyValueCache(const ModelSpec& model, std::int64_t max_length, ElementTypes types,
                             at::Device device)
    : model_(model) {
  for (std::int64_t layer = 0; layer < model.layers; ++layer)
    for (std::vector<at::Tensor>* all : {&keys_, &values_})
      all->push_back(at::empty({max_length, model.kv_heads, model.head_dim},
                               at::TensorOptions(types.wide).device(device)));
}

void KeyValueCache::attend(int layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           at::Tensor& out) {
  const std::int64_t count = q.size(0), end = length_ + count, group = model_.heads / model_.kv_heads;
  at::Tensor keys = keys_[static_cast<std::size_t>(layer)], values = values_[static_cast<std::size_t>(layer)];
  ensure(end <= keys.size(0), "{} tokens exceed the cache capacity of {}", end, keys.size(0));
  keys.narrow(0, length_, count).copy_(k);
  values.narrow(0, length_, count).copy_(v);
  keys = keys.narrow(0, 0, end).transpose(0, 1),
  values = values.narrow(0, 0, end).transpose(0, 1);  // [kv_heads, end, head_dim]
  // [kv_heads, count * group, head_dim]
  const at::Tensor queries = q.to(keys.scalar_type())
                                 .view({count, model_.kv_heads, group, model_.head_dim})
                                 .permute({1, 0, 2, 3})
                                 .reshape({model_.kv_heads, count * group, model_.head_dim});
  at::Tensor scores =
      at::bmm(queries, keys.transpose(1, 2)).div_(std::sqrt(static_cast<double>(model_.head_dim)));
  if (count > 1) {
    const at::Tensor is_later = at::ones({count, end}, at::TensorOptions(at::kBool).device(q.device()))
                                    .triu(length_ + 1)
                                    .unsqueeze(1);
    scores.view({model_.kv_heads, count, group, end})
        .masked_fill_(is_later, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor attended = at::bmm(scores.softmax(-1), values);
  out.copy_(attended.view({model_.kv_heads, count, group, model_.head_dim})
                .permute({1, 0, 2, 3})
                .reshape({count, model_.heads, model_.head_dim}));
}

}  // namespace optimus
