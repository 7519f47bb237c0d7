// The part of Precopy that runs during the pause. It repeats the last update on the state that was sent
// before that update.
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "kernels/kernels.h"
#include "switching/precopy.h"

namespace optimus {
namespace {

constexpr int kGradientTag = 0x7fd2;        // not used by other messages
constexpr std::size_t kRoundsInFlight = 3;  // of gradient messages

at::Tensor flat_of(const at::Tensor& view) { return view.contiguous().view({-1}); }

}  // namespace

// The gradients for the rows of one message, in flight.
struct Precopy::Exchange {
  const Message* message = nullptr;
  bool is_send = false;
  at::Tensor values{};
  std::unique_ptr<Pending> pending{};
};

void Precopy::repeat_update(const UpdateRecord& update, std::int64_t num_updates) {
  if (num_updates == terms_.num_updates) return;
  ensure(num_updates == terms_.num_updates + 1, "{} updates, but state was sent early at update {}",
         num_updates, terms_.num_updates);
  has_update_ = true, update_ = update.options;
  step_scalars_ =
      at::tensor(at::ArrayRef<double>(update.step_scalars.data(), update.step_scalars.size()), at::kDouble);
  std::size_t num_rounds = 0;
  for (const Stream& stream : streams_) num_rounds = std::max(num_rounds, stream.num_sent);
  std::deque<std::vector<Exchange>> rounds_in_flight;
  for (std::size_t round = 0; round < num_rounds; ++round) {
    rounds_in_flight.push_back(begin_gradients(round));
    if (rounds_in_flight.size() < kRoundsInFlight) continue;
    end_gradients(std::move(rounds_in_flight.front()));
    rounds_in_flight.pop_front();
  }
  for (std::vector<Exchange>& exchanges : rounds_in_flight) end_gradients(std::move(exchanges));
}

std::vector<Precopy::Exchange> Precopy::begin_gradients(std::size_t round) {
  std::vector<Exchange> exchanges;
  for (const Stream& stream : streams_) {
    if (round >= stream.num_sent) continue;
    const Message& message = stream.messages[round];
    std::int64_t count = 0, offset = 0;
    for (const Slice& slice : message)
      if (views_.has_moments(slice.of->tensor)) count += slice.box.num_elements();
    if (count == 0) continue;
    Exchange& next = exchanges.emplace_back(Exchange{&message, stream.is_send});
    next.values = at::empty({count}, types_.wide);
    for (const Slice& slice : message) {
      if (!stream.is_send || !views_.has_moments(slice.of->tensor)) continue;
      const at::Tensor gradient = views_.gradient(*context_.ends.old, slice.of->tensor, slice.box);
      next.values.narrow(0, offset, gradient.numel()).view(gradient.sizes()).copy_(gradient);
      offset += gradient.numel();
    }
    next.pending = stream.is_send
                       ? context_.comm.send(stream.peer, next.values, kGradientTag, "gradients")
                       : context_.comm.receive(stream.peer, next.values, kGradientTag, "gradients");
  }
  return exchanges;
}

void Precopy::end_gradients(std::vector<Exchange> exchanges) {
  for (Exchange& exchange : exchanges) {
    wait(*exchange.pending);
    if (exchange.is_send) continue;
    gradients_received_ += Bytes(static_cast<std::int64_t>(exchange.values.nbytes()));
    std::int64_t offset = 0;
    for (const Slice& slice : *exchange.message) {
      if (!views_.has_moments(slice.of->tensor)) continue;
      repeat(slice, exchange.values.narrow(0, offset, slice.box.num_elements()));
      offset += slice.box.num_elements();
    }
  }
}

// Moments without their masters are updated with zero masters, which do not affect them.
void Precopy::repeat(const Slice& slice, const at::Tensor& gradient) {
  std::vector<at::Tensor> state = views_.values(*context_.ends.next, slice.of->tensor, slice.box);
  if (!views_.has_masters(slice.of->tensor))
    state.insert(state.begin(), at::zeros(gradient.sizes(), types_.wide));
  update(views_.name_of(slice.of->tensor), {.beta1 = update_.beta1, .beta2 = update_.beta2}, gradient, state);
}

// With beta1 = beta2 = 1, the update changes only the masters, not the moments.
void Precopy::repeat_masters() {
  if (!has_update_) return;
  for (const Stream& stream : streams_)
    for (std::size_t m = 0; !stream.is_send && m < stream.num_sent; ++m)
      for (const Slice& slice : stream.messages[m]) {
        const int tensor = slice.of->tensor;
        if (views_.has_moments(tensor)) continue;
        std::vector<at::Tensor> state = views_.values(*context_.ends.next, tensor, slice.box);
        for (const at::Tensor& moment :
             views_.values(*context_.ends.next, views_.moments_of(tensor), slice.box))
          state.push_back(moment);
        update(views_.name_of(tensor), {.beta1 = 1, .beta2 = 1},
               at::zeros({slice.box.num_elements()}, types_.wide), state);
      }
}

// Uses the same kernel and types as the sender's engine.
void Precopy::update(const std::string& name, AdamOptions options, const at::Tensor& gradient,
                     const std::vector<at::Tensor>& state) {
  const Parameters& next = *context_.ends.next;
  const bool is_own = next.find(name) != nullptr;
  const LocalTensor& local_tensor = *(is_own ? next : *next.copies()).find(name);
  options.epsilon = update_.epsilon,
  options.weight_decay = local_tensor.has_weight_decay ? update_.weight_decay : 0;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& values : state) flat.push_back(flat_of(values));
  at::Tensor weights =
      types_.element == types_.wide ? flat[0] : at::empty({gradient.numel()}, types_.element);
  kernels_->adamw(options, step_scalars_, gradient, flat[0], flat[1], flat[2], weights);
  for (std::size_t i = 0; i < state.size(); ++i)
    if (!state[i].is_contiguous()) state[i].copy_(flat[i].view(state[i].sizes()));
}

}  // namespace optimus
