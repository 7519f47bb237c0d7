// See attention_cuda.h. Also the dropout factors of attention scores on a GPU, for the plain implementation.
#include "kernels/attention_cuda.h"

#ifdef OPTIMUS_CUDA
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "kernels/attention_dropout.h"
#include "kernels/cuda_tensors.h"

namespace optimus {
namespace {

// The key of each sequence, in the memory of the device.
at::Tensor sample_keys(const AttentionDropout& dropout, std::int64_t sequences, at::Device device) {
  if (dropout.sample_keys.defined()) return dropout.sample_keys;
  const at::Tensor keys = at::empty({sequences}, at::kLong);
  for (std::int64_t i = 0; i < sequences; ++i) {
    const auto sample = static_cast<std::uint64_t>(dropout.samples[static_cast<std::size_t>(i)]);
    keys.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(dropout.key.derive(sample).value);
  }
  return keys.to(device, at::kLong, /*non_blocking=*/true);
}

cuda::HeadRows heads_of(const at::Tensor& tensor) {
  return {tensor.data_ptr(), tensor.stride(0), tensor.stride(1)};
}

// The task without its tensors' dout, dq, dk and dv. Its element is fp32 if it cannot be computed.
cuda::FusedAttentionTask fused_task(const AttentionTask& task, const at::Tensor& q, const at::Tensor& k,
                                    const at::Tensor& v, const at::Tensor& out, const at::Tensor& logsumexp) {
  const AttentionShape& shape = task.shape;
  check_attention(shape, task.dropout);
  cuda::FusedAttentionTask fused{.element = element_of(q)};
  const bool is_known = task.segments.empty() && logsumexp.is_contiguous() &&
                        shape.length <= std::numeric_limits<int>::max() - 1024;
  if (!is_known) fused.element = cuda::Element::fp32;
  fused.is_causal = shape.is_causal, fused.length = static_cast<int>(shape.length);
  fused.heads = static_cast<int>(shape.heads), fused.kv_heads = static_cast<int>(shape.kv_heads);
  fused.head_dim = static_cast<int>(shape.head_dim), fused.sequences = shape.sequences;
  fused.scale = static_cast<float>(shape.scale);
  fused.q = heads_of(q), fused.k = heads_of(k), fused.v = heads_of(v), fused.out = heads_of(out);
  fused.logsumexp = static_cast<float*>(logsumexp.data_ptr());
  fused.threshold = dropout_threshold(task.dropout.rate), fused.first_head = task.dropout.first_head;
  return fused;
}

const std::uint64_t* words_of(const at::Tensor& keys) {
  return static_cast<const std::uint64_t*>(flat_data(keys, at::kLong));
}

}  // namespace

bool dropout_attention_forward(const AttentionTask& task, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, at::Tensor& out, at::Tensor& logsumexp) {
  const Launch launch(q);
  cuda::FusedAttentionTask fused = fused_task(task, q, k, v, out, logsumexp);
  if (!cuda::fused_attention_supports(fused)) return false;
  const at::Tensor keys = sample_keys(task.dropout, task.shape.sequences, q.device());
  fused.sample_keys = words_of(keys);
  launch(cuda::fused_attention_forward, fused);
  return true;
}

bool dropout_attention_backward(const AttentionTask& task, const at::Tensor& dout, const at::Tensor& q,
                                const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                                const at::Tensor& logsumexp, at::Tensor& dq, at::Tensor& dk, at::Tensor& dv) {
  const bool is_in_place =
      dq.data_ptr() == q.data_ptr() || dk.data_ptr() == k.data_ptr() || dv.data_ptr() == v.data_ptr();
  if (is_in_place)
    return dropout_attention_backward(task, dout, q.clone(), k.clone(), v.clone(), out, logsumexp, dq, dk,
                                      dv);
  const Launch launch(q);
  cuda::FusedAttentionTask fused = fused_task(task, q, k, v, out, logsumexp);
  fused.dout = heads_of(dout), fused.dq = heads_of(dq), fused.dk = heads_of(dk), fused.dv = heads_of(dv);
  if (!cuda::fused_attention_supports(fused)) return false;
  const at::Tensor keys = sample_keys(task.dropout, task.shape.sequences, q.device());
  const at::Tensor workspace = at::empty({2, logsumexp.numel()}, logsumexp.options());
  fused.sample_keys = words_of(keys), fused.workspace = workspace.data_ptr<float>();
  launch(cuda::fused_attention_backward, fused);
  return true;
}

void fill_dropout_factors(const AttentionDropout& dropout, RandomKey key, Span queries, Span keys,
                          at::Tensor& factors) {
  const Launch launch(factors);
  cuda::DropoutFactorsTask task{.element = element_of(factors),
                                .first_query = queries.begin,
                                .num_queries = factors.size(1),
                                .first_key = keys.begin,
                                .num_keys = factors.size(2),
                                .threshold = dropout_threshold(dropout.rate)};
  for (std::int64_t first = 0; first < factors.size(0); first += cuda::kMaxDropoutKeys) {
    task.num_heads = std::min<std::int64_t>(cuda::kMaxDropoutKeys, factors.size(0) - first);
    task.factors = flat_data(factors.narrow(0, first, task.num_heads), factors.scalar_type());
    cuda::DropoutKeys keys_of_heads;
    for (std::int64_t i = 0; i < task.num_heads; ++i)
      keys_of_heads.of[i] = key.derive(static_cast<std::uint64_t>(dropout.first_head + first + i)).value;
    launch(cuda::dropout_factors, task, keys_of_heads);
  }
}

}  // namespace optimus

#else

namespace optimus {

bool dropout_attention_forward(const AttentionTask&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                               at::Tensor&, at::Tensor&) {
  return false;
}
bool dropout_attention_backward(const AttentionTask&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                const at::Tensor&, const at::Tensor&, const at::Tensor&, at::Tensor&,
                                at::Tensor&, at::Tensor&) {
  return false;
}

}  // namespace optimus
#endif
