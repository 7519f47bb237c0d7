// See layer_ring_attention.h.
#include "engine/layer_ring_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "schedule/share.h"

namespace optimus {
namespace {

std::string keys_buffer_name(int ring_step) { return ring_step % 2 == 0 ? "ring.0" : "ring.1"; }
std::string gradient_name(int ring_step) {
  return ring_step % 2 == 0 ? "ring.gradient.0" : "ring.gradient.1";
}

at::Tensor heads_of_range(const at::Tensor& x, std::int64_t first, std::int64_t count) {
  return x.size(1) == count ? x : x.narrow(1, first, count);
}

}  // namespace

LayerRingAttention::LayerRingAttention(const BlockServices& services, int layer, const TensorPart& part,
                                       std::vector<HeadRange> runs)
    : services_(services), layer_(layer), part_(part), head_ranges_(std::move(runs)) {}

// Returns views of the keys and values in a ring buffer, where they are adjacent in each row.
LayerRingAttention::Keys LayerRingAttention::keys_in(const at::Tensor& buffer) const {
  const std::int64_t heads = part_.kv_heads.size();
  const at::Tensor both = buffer.view({buffer.size(0), 2 * heads, services_.model.head_dim});
  return {both.narrow(1, 0, heads), both.narrow(1, heads, heads)};
}

void LayerRingAttention::pack(const Pass& pass, const at::Tensor& k, const at::Tensor& v) const {
  Keys keys = keys_in(pass["ring.0"]);
  keys.k.narrow(0, 0, k.size(0)).copy_(k), keys.v.narrow(0, 0, v.size(0)).copy_(v);
}

at::Tensor LayerRingAttention::sum(const Pass& pass) const {
  return pass["ring.sum"].unflatten(1, {-1, services_.model.head_dim});
}

at::Tensor LayerRingAttention::logsumexp(const Pass& pass, const HeadRange& run) const {
  const at::Tensor flat = pass["attention.logsumexp"].view({-1});
  const std::int64_t rows = flat.numel() / part_.heads.size();
  return flat.narrow(0, run.first_head * rows, run.count * rows).view({-1, run.count, pass.own_length});
}

RingTask LayerRingAttention::task(const Pass& pass, const HeadRange& run) const {
  const ModelSpec& model = services_.model;
  const Microbatch& host = *pass.microbatch->host;
  const int peer_part = ((part_.context - pass.ring_step) % part_.cp + part_.cp) % part_.cp;
  const ContextPositions positions = context_positions(pass.sequence_length, part_.cp, peer_part);
  RingTask task;
  task.shape = {.sequences = std::ssize(host.samples),
                .length = pass.sequence_length,
                .heads = run.count,
                .kv_heads = run.num_kv,
                .head_dim = model.head_dim,
                .is_causal = model.is_causal,
                .scale = 1 / std::sqrt(static_cast<double>(model.head_dim))};
  task.own_length = pass.own_length;
  for (const Span& span : positions) task.key_length += span.size();
  task.pieces = ring_pieces(host.context, positions, task.shape.sequences, pass.sequence_length,
                            model.is_causal, host.segments);
  const DropoutSite site = dropout_site(pass, model.attention_dropout, layer_, "scores");
  if (site.rate > 0)
    task.dropout = {site.rate, site.key, site.samples, part_.heads.begin + run.first_head,
                    model.max_positions};
  return task;
}

void LayerRingAttention::begin_forward(const Pass& pass, const at::Tensor& k, const at::Tensor& v) const {
  pack(pass, k, v);
  sum(pass).zero_();
  pass["attention.logsumexp"].fill_(-std::numeric_limits<double>::infinity());
}

void LayerRingAttention::forward_ring_step(const Pass& pass, const at::Tensor& q) const {
  const Keys keys = keys_in(pass[keys_buffer_name(pass.ring_step)]);
  for (const HeadRange& run : head_ranges_) {
    at::Tensor out = heads_of_range(sum(pass), run.first_head, run.count), sums = logsumexp(pass, run);
    services_.ring.forward(task(pass, run), heads_of_range(q, run.first_head, run.count),
                           heads_of_range(keys.k, run.first_kv, run.num_kv),
                           heads_of_range(keys.v, run.first_kv, run.num_kv), out, sums);
  }
}

void LayerRingAttention::end_forward(const Pass& pass, at::Tensor output) const { output.copy_(sum(pass)); }

void LayerRingAttention::begin_backward(const Pass& pass, const at::Tensor& k, const at::Tensor& v) const {
  pack(pass, k, v);
  sum(pass).zero_();
  pass["ring.gradient.0"].zero_();
}

void LayerRingAttention::backward_ring_step(const Pass& pass, const at::Tensor& d_attended,
                                            const at::Tensor& q, const at::Tensor& output) const {
  const Keys keys = keys_in(pass[keys_buffer_name(pass.ring_step)]),
             gradients = keys_in(pass[gradient_name(pass.ring_step)]);
  for (const HeadRange& run : head_ranges_) {
    const auto select_query_heads = [&](const at::Tensor& x) {
      return heads_of_range(x, run.first_head, run.count);
    };
    const auto select_kv_heads = [&](const at::Tensor& x) {
      return heads_of_range(x, run.first_kv, run.num_kv);
    };
    at::Tensor dq = select_query_heads(sum(pass)), dk = select_kv_heads(gradients.k),
               dv = select_kv_heads(gradients.v);
    services_.ring.backward(task(pass, run), select_query_heads(d_attended), select_query_heads(q),
                            select_kv_heads(keys.k), select_kv_heads(keys.v), select_query_heads(output),
                            logsumexp(pass, run), dq, dk, dv);
  }
}

void LayerRingAttention::end_backward(const Pass& pass, at::Tensor dq, at::Tensor dk, at::Tensor dv) const {
  const Keys own_gradients = keys_in(pass[gradient_name(part_.cp)]);
  dq.copy_(sum(pass));
  dk.copy_(own_gradients.k.narrow(0, 0, dk.size(0))), dv.copy_(own_gradients.v.narrow(0, 0, dv.size(0)));
}

Exchange LayerRingAttention::exchange(const Instruction& ring_step, const Pass& pass) const {
  Exchange result{.kind = Exchange::Kind::ring};
  const bool is_backward = ring_step.serves == Op::backward_input;
  if (!is_backward || ring_step.ring_step + 1 < part_.cp)
    result.ring_transfers.emplace_back(pass[keys_buffer_name(ring_step.ring_step)],
                                       pass[keys_buffer_name(ring_step.ring_step + 1)]);
  if (is_backward)
    result.ring_transfers.emplace_back(pass[gradient_name(ring_step.ring_step)],
                                       pass[gradient_name(ring_step.ring_step + 1)]);
  return result;
}

namespace {

// Several operations that are waited for together.
class PendingAll final : public Pending {
 public:
  explicit PendingAll(std::vector<std::unique_ptr<Pending>> pendings) : pendings_(std::move(pendings)) {}
  bool is_done() override {
    return std::all_of(pendings_.begin(), pendings_.end(),
                       [](const auto& operation) { return operation->is_done(); });
  }
  CommOutcome<void> wait(const Deadline& deadline) override {
    for (const auto& operation : pendings_)
      if (CommOutcome<void> done = operation->wait(deadline); !done) return done;
    return {};
  }
  std::optional<Deadline::Clock::time_point> end_time() const override {
    std::optional<Deadline::Clock::time_point> last;
    for (const auto& operation : pendings_) last = std::max(last, operation->end_time());
    return last;
  }
  std::optional<Seconds> duration() const override {
    std::optional<Seconds> longest;
    for (const auto& operation : pendings_) {
      const std::optional<Seconds> operation_duration = operation->duration();
      if (!operation_duration) return std::nullopt;
      longest = std::max(longest, operation_duration);
    }
    return longest;
  }

 private:
  const std::vector<std::unique_ptr<Pending>> pendings_;
};

}  // namespace

std::unique_ptr<Pending> send_around_ring(Comm& comm, const Group& group,
                                          const std::vector<std::pair<at::Tensor, at::Tensor>>& tensors,
                                          std::string_view description) {
  constexpr int kTag = 16;  // distinct from the tags of messages between stages (crossing.cpp)
  const auto size = std::ssize(group.members);
  const auto own_index =
      std::find(group.members.begin(), group.members.end(), comm.rank()) - group.members.begin();
  const int next_rank = group.members[static_cast<std::size_t>((own_index + 1) % size)],
            previous_rank = group.members[static_cast<std::size_t>((own_index + size - 1) % size)];
  std::vector<std::unique_ptr<Pending>> pendings;
  for (const auto& [from, to] : tensors) {
    pendings.push_back(comm.receive(previous_rank, to, kTag, description));
    pendings.push_back(comm.send(next_rank, from, kTag, description));
  }
  return std::make_unique<PendingAll>(std::move(pendings));
}

}  // namespace optimus
