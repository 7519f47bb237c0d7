// See ring_pass.h.
#include "engine/ring_pass.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "schedule/share.h"

namespace optimus {
namespace {

std::string ring_name(int hop) { return hop % 2 == 0 ? "ring.0" : "ring.1"; }
std::string gradient_name(int hop) { return hop % 2 == 0 ? "ring.gradient.0" : "ring.gradient.1"; }

at::Tensor of_run(const at::Tensor& x, std::int64_t first, std::int64_t count) {
  return x.size(1) == count ? x : x.narrow(1, first, count);
}

}  // namespace

RingPass::RingPass(const Tools& tools, int layer, const TensorPart& part, std::vector<HeadRun> runs)
    : tools_(tools), layer_(layer), part_(part), runs_(std::move(runs)) {}

// Keys and values are adjacent in each row.
RingPass::Keys RingPass::keys_in(const at::Tensor& buffer) const {
  const std::int64_t heads = part_.kv_heads.size();
  const at::Tensor both = buffer.view({buffer.size(0), 2 * heads, tools_.model.head_dim});
  return {both.narrow(1, 0, heads), both.narrow(1, heads, heads)};
}

void RingPass::pack(const Pass& pass, const at::Tensor& k, const at::Tensor& v) const {
  Keys own = keys_in(pass["ring.0"]);
  own.k.narrow(0, 0, k.size(0)).copy_(k), own.v.narrow(0, 0, v.size(0)).copy_(v);
}

at::Tensor RingPass::sum(const Pass& pass) const {
  return pass["ring.sum"].unflatten(1, {-1, tools_.model.head_dim});
}

at::Tensor RingPass::logsumexp(const Pass& pass, const HeadRun& run) const {
  const at::Tensor flat = pass["attention.logsumexp"].view({-1});
  const std::int64_t rows = flat.numel() / part_.heads.size();
  return flat.narrow(0, run.first * rows, run.count * rows).view({-1, run.count, pass.own_length});
}

RingTask RingPass::task(const Pass& pass, const HeadRun& run) const {
  const ModelSpec& model = tools_.model;
  const Microbatch& host = *pass.microbatch->host;
  const int theirs = ((part_.context - pass.hop) % part_.cp + part_.cp) % part_.cp;
  const ContextPositions positions = context_positions(pass.sequence_length, part_.cp, theirs);
  RingTask task;
  task.shape = {.sequences = std::ssize(host.samples),
                .length = pass.sequence_length,
                .heads = run.count,
                .kv_heads = run.num_kv,
                .head_dim = model.head_dim,
                .is_causal = model.is_causal,
                .scale = 1 / std::sqrt(static_cast<double>(model.head_dim))};
  task.own_length = pass.own_length;
  for (const Span& span : positions) task.their_length += span.size();
  task.pieces = ring_pieces(host.context, positions, task.shape.sequences, pass.sequence_length,
                            model.is_causal, host.segments);
  const DropoutSite site = dropout_site(pass, model.attention_dropout, layer_, "scores");
  if (site.rate > 0)
    task.dropout = {site.rate, site.key, site.samples, part_.heads.begin + run.first, model.max_positions};
  return task;
}

void RingPass::begin_forward(const Pass& pass, const at::Tensor& k, const at::Tensor& v) const {
  pack(pass, k, v);
  sum(pass).zero_();
  pass["attention.logsumexp"].fill_(-std::numeric_limits<double>::infinity());
}

void RingPass::forward_hop(const Pass& pass, const at::Tensor& q) const {
  const Keys keys = keys_in(pass[ring_name(pass.hop)]);
  for (const HeadRun& run : runs_) {
    at::Tensor out = of_run(sum(pass), run.first, run.count), sums = logsumexp(pass, run);
    tools_.ring.forward(task(pass, run), of_run(q, run.first, run.count),
                        of_run(keys.k, run.first_kv, run.num_kv), of_run(keys.v, run.first_kv, run.num_kv),
                        out, sums);
  }
}

void RingPass::end_forward(const Pass& pass, at::Tensor output) const { output.copy_(sum(pass)); }

void RingPass::begin_backward(const Pass& pass, const at::Tensor& k, const at::Tensor& v) const {
  pack(pass, k, v);
  sum(pass).zero_();
  pass["ring.gradient.0"].zero_();
}

void RingPass::backward_hop(const Pass& pass, const at::Tensor& d_attended, const at::Tensor& q,
                            const at::Tensor& output) const {
  const Keys keys = keys_in(pass[ring_name(pass.hop)]), gradients = keys_in(pass[gradient_name(pass.hop)]);
  for (const HeadRun& run : runs_) {
    const auto of_queries = [&](const at::Tensor& x) { return of_run(x, run.first, run.count); };
    const auto of_keys = [&](const at::Tensor& x) { return of_run(x, run.first_kv, run.num_kv); };
    at::Tensor dq = of_queries(sum(pass)), dk = of_keys(gradients.k), dv = of_keys(gradients.v);
    tools_.ring.backward(task(pass, run), of_queries(d_attended), of_queries(q), of_keys(keys.k),
                         of_keys(keys.v), of_queries(output), logsumexp(pass, run), dq, dk, dv);
  }
}

void RingPass::end_backward(const Pass& pass, at::Tensor dq, at::Tensor dk, at::Tensor dv) const {
  const Keys home = keys_in(pass[gradient_name(part_.cp)]);
  dq.copy_(sum(pass));
  dk.copy_(home.k.narrow(0, 0, dk.size(0))), dv.copy_(home.v.narrow(0, 0, dv.size(0)));
}

Exchange RingPass::exchange(const Instruction& hop, const Pass& pass) const {
  Exchange result{.kind = Exchange::Kind::ring};
  const bool is_backward = hop.serves == Op::backward_input;
  if (!is_backward || hop.hop + 1 < part_.cp)
    result.passed_on.emplace_back(pass[ring_name(hop.hop)], pass[ring_name(hop.hop + 1)]);
  if (is_backward)
    result.passed_on.emplace_back(pass[gradient_name(hop.hop)], pass[gradient_name(hop.hop + 1)]);
  return result;
}

namespace {

// Several operations that are waited for together.
class PendingAll final : public Pending {
 public:
  explicit PendingAll(std::vector<std::unique_ptr<Pending>> all) : all_(std::move(all)) {}
  bool is_done() override {
    return std::all_of(all_.begin(), all_.end(), [](const auto& one) { return one->is_done(); });
  }
  CommOutcome<void> wait(const Deadline& deadline) override {
    for (const auto& one : all_)
      if (CommOutcome<void> done = one->wait(deadline); !done) return done;
    return {};
  }
  std::optional<Deadline::Clock::time_point> ended() const override {
    std::optional<Deadline::Clock::time_point> last;
    for (const auto& one : all_) last = std::max(last, one->ended());
    return last;
  }
  std::optional<Seconds> took() const override {
    std::optional<Seconds> longest;
    for (const auto& one : all_) {
      const std::optional<Seconds> its = one->took();
      if (!its) return std::nullopt;
      longest = std::max(longest, its);
    }
    return longest;
  }

 private:
  const std::vector<std::unique_ptr<Pending>> all_;
};

}  // namespace

std::unique_ptr<Pending> pass_on(Comm& comm, const Group& group,
                                 const std::vector<std::pair<at::Tensor, at::Tensor>>& tensors,
                                 std::string_view what) {
  constexpr int kTag = 16;  // distinct from the tags of messages between stages (crossing.cpp)
  const auto size = std::ssize(group.members);
  const auto own = std::find(group.members.begin(), group.members.end(), comm.rank()) - group.members.begin();
  const int next = group.members[static_cast<std::size_t>((own + 1) % size)],
            before = group.members[static_cast<std::size_t>((own + size - 1) % size)];
  std::vector<std::unique_ptr<Pending>> all;
  for (const auto& [from, to] : tensors) {
    all.push_back(comm.receive(before, to, kTag, what));
    all.push_back(comm.send(next, from, kTag, what));
  }
  return std::make_unique<PendingAll>(std::move(all));
}

}  // namespace optimus
