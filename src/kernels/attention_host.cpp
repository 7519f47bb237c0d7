// Attention on processors, our own: blocks of queries against blocks of keys, with dropout masks that are a function of
// (sample, head, query, key) alone. Read next: host_attention.h.
#include "kernels/attention.h"
#include "kernels/host_attention.h"

namespace optimus {
namespace {

class HostAttention final : public Attention {
 public:
  void forward(const AttentionTask& task, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               at::Tensor& out, at::Tensor& logsumexp) const override {
    zero_gaps(task, out);
    if (!task.segments.empty()) logsumexp.zero_();
    const AttentionTensors all{out, q, k, v, out, logsumexp, q, k, v};
    host_attention_forward(task, all);
  }

  void backward(const AttentionTask& task, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& out, const at::Tensor& logsumexp, at::Tensor& dq,
                at::Tensor& dk, at::Tensor& dv) const override {
    zero_gaps(task, dq), zero_gaps(task, dk), zero_gaps(task, dv);
    const AttentionTensors all{dout, q, k, v, out, logsumexp, dq, dk, dv};
    host_attention_backward(task, all);
  }
};

}  // namespace

std::unique_ptr<Attention> make_host_attention() { return std::make_unique<HostAttention>(); }

}  // namespace optimus
