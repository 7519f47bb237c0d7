// Ring attention of a layer under context parallelism. Keys and values circulate in a ring of devices, and
// each device adds the attention of its own queries to the keys that it currently has. In the backward pass,
// the gradients of keys and values travel with the keys and values and reach their owner at the end.
//
//   ring step h of part c uses the keys of context part (c - h) mod cp, in buffer h % 2;
//   meanwhile they are sent to the next part
//
// Used by the layer block (layer_block.cpp). The arithmetic is in kernels/ring_attention.h.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "comm/comm.h"
#include "engine/block.h"

namespace optimus {

class LayerRingAttention {
 public:
  LayerRingAttention(const BlockServices& services, int layer, const TensorPart& part,
                     std::vector<HeadRange> runs);

  // `q`, `k` and `v` are [rows, heads, head_dim] of this device. Call the begin function, then the ring-step
  // function for each of the cp ring steps, then the end function. end_forward() writes `output`;
  // end_backward() writes `dq`, `dk` and `dv`.
  void begin_forward(const Pass& pass, const at::Tensor& k, const at::Tensor& v) const;
  void forward_ring_step(const Pass& pass, const at::Tensor& q) const;
  void end_forward(const Pass& pass, at::Tensor output) const;

  void begin_backward(const Pass& pass, const at::Tensor& k, const at::Tensor& v) const;
  void backward_ring_step(const Pass& pass, const at::Tensor& d_attended, const at::Tensor& q,
                          const at::Tensor& output) const;
  void end_backward(const Pass& pass, at::Tensor dq, at::Tensor dk, at::Tensor dv) const;

  Exchange exchange(const Instruction& ring_step, const Pass& pass) const;

 private:
  struct Keys {
    at::Tensor k, v;  // [rows, heads, head_dim]
  };
  Keys keys_in(const at::Tensor& buffer) const;
  void pack(const Pass& pass, const at::Tensor& k, const at::Tensor& v) const;
  at::Tensor sum(const Pass& pass) const;
  at::Tensor logsumexp(const Pass& pass, const HeadRange& run) const;
  RingTask task(const Pass& pass, const HeadRange& run) const;

  const BlockServices& services_;
  const int layer_;
  const TensorPart part_;
  const std::vector<HeadRange> head_ranges_;
};

// For each pair in `tensors`, sends the first tensor to the next member of the group and receives the
// second from the previous member.
std::unique_ptr<Pending> send_around_ring(Comm& comm, const Group& group,
                                          const std::vector<std::pair<at::Tensor, at::Tensor>>& tensors,
                                          std::string_view description);

}  // namespace optimus
