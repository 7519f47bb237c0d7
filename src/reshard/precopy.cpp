// See precopy.h.
#include "reshard/precopy.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <deque>

#include "base/error.h"
#include "kernels/kernels.h"

namespace optimus {
namespace {

constexpr int kEarlyTag = 0x7fd0, kGoesOnTag = 0x7fd1, kGradientTag = 0x7fd2;  // no other messages have them
constexpr const char* kWhat = "state that is sent early";
// Copies of so many elements are not worth a second thread to ATen: those of a step have the cores.
constexpr std::int64_t kMostElements = 32768;
constexpr std::size_t kRoundsUnderWay = 3;  // of gradients

at::Tensor flat_of(const at::Tensor& view) {
  return view.is_contiguous() ? view.view({-1}) : view.reshape({-1});
}

std::int64_t elements_of(const Box& box, std::size_t num_fields) {
  return box.num_elements() * static_cast<std::int64_t>(num_fields);
}

// The boxes of moments that a rank will hold.
std::map<int, std::vector<Box>> moments_at(const PlanChange& change, const StateViews& views,
                                           const RankIndex& index, int rank) {
  std::map<int, std::vector<Box>> result;
  for (const HeldBox& held : boxes_of(change.after, index, Rank{rank}))
    if (views.has_moments(held.tensor)) result[held.tensor].push_back(held.box);
  return result;
}

// Rows of `box` that are in another one; nothing where other dims cut it too.
Box common_rows(const Box& box, const Box& other) {
  const std::optional<Box> common = intersect(box, other);
  if (!common) return {};
  for (int d = 1; d < box.num_dims; ++d)
    if ((*common)[d] != box[d]) return {};
  return *common;
}

}  // namespace

bool can_precopy(const PlanChange& change, at::Device device) {
  return device.is_cpu() && !is_asynchronous(change.from.schedule) && change.from.buddy == 0 &&
         change.dead.empty();
}

std::vector<EarlyRows> early_rows(const PlanChange& change, const RankShare& share, std::size_t num_waves) {
  const StateViews views(change);
  const RankIndex index(change.after);
  std::map<int, std::map<int, std::vector<Box>>> moments;  // by receiver and tensor
  std::vector<EarlyRows> result;
  for (std::size_t w = 0; w < std::min(num_waves, share.waves.size()); ++w)
    for (const RankShare::Operation& operation : share.waves[w].operations) {
      if (views.has_moments(operation.tensor)) {
        result.push_back({&operation, operation.box});
        continue;
      }
      const int receiver = operation.is_send ? operation.peer.value : share.rank.value;
      if (!moments.contains(receiver)) moments[receiver] = moments_at(change, views, index, receiver);
      for (const Box& held : moments[receiver][views.moments_of(operation.tensor)]) {
        const Box rows = common_rows(operation.box, held);
        if (rows.num_dims == 0) continue;
        result.push_back({&operation, rows});
        break;  // rows that came early must be one box
      }
    }
  return result;
}

Bytes saved_by_precopy(const PlanChange& change, const RankShare& share, std::size_t num_waves) {
  const StateViews views(change);
  const std::int64_t width = std::max(4, bytes_of(change.to.precision));
  std::int64_t saved = 0;
  for (const EarlyRows& rows : early_rows(change, share, num_waves)) {
    if (rows.of->is_send) continue;
    const auto fields = static_cast<std::int64_t>(views.fields(rows.of->tensor).size());
    saved += width * rows.box.num_elements() * (fields - (views.has_moments(rows.of->tensor) ? 1 : 0));
  }
  return Bytes(saved);
}

// A stream's part in a round.
struct Precopy::Turn {
  Stream* stream = nullptr;
  at::Tensor goes_on{}, values{};
  std::unique_ptr<Pending> pending{};
};

// Gradients of one message's rows, under way.
struct Precopy::Exchange {
  const Message* message = nullptr;
  bool is_send = false;
  at::Tensor values{};
  std::unique_ptr<Pending> pending{};
};

Precopy::Precopy(const PrecopyFacts& facts, const PrecopyTerms& terms, const PrecopyOptions& options)
    : facts_(facts),
      terms_(terms),
      options_(options),
      views_(facts.change),
      types_(types_of(facts.change.to.precision)),
      kernels_(make_kernels(at::kCPU)) {
  plan_streams();
  thread_ = std::thread([this] { run(); });
}

Precopy::~Precopy() { end(); }

void Precopy::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

std::string Precopy::end() {
  close();
  if (!thread_.joinable()) return failure_;
  thread_.join();
  note_gone();
  return failure_;
}

// Both ends see the same boxes in the same order, so both cut them alike.
void Precopy::plan_streams() {
  std::map<std::pair<int, bool>, Stream> streams;
  std::map<std::pair<int, bool>, std::int64_t> last;  // elements in the last message
  const std::int64_t most = options_.message.value / static_cast<std::int64_t>(at::elementSize(types_.wide));
  for (const EarlyRows& rows : early_rows(facts_.change, facts_.share, terms_.num_waves)) {
    const std::pair<int, bool> key{rows.of->peer.value, rows.of->is_send};
    Stream& stream = streams.try_emplace(key, Stream{key.first, key.second}).first->second;
    const std::size_t num_fields = views_.fields(rows.of->tensor).size();
    const std::int64_t row = rows.box.num_elements() / rows.box[0].size();
    const std::int64_t step = std::max<std::int64_t>(1, kMostElements / row);
    for (std::int64_t begin = rows.box[0].begin; begin < rows.box[0].end; begin += step) {
      Slice slice{rows.of, rows.box};
      slice.box[0] = {begin, std::min(rows.box[0].end, begin + step)};
      const std::int64_t count = elements_of(slice.box, num_fields);
      if (stream.messages.empty() || last[key] + count > most) stream.messages.emplace_back(), last[key] = 0;
      stream.messages.back().push_back(slice), last[key] += count;
    }
  }
  for (auto& [key, stream] : streams) streams_.push_back(std::move(stream));
}

void Precopy::run() {
  const at::AutoDispatchBelowAutograd no_autograd;
  try {
    for (const int block : facts_.blocks) facts_.ends.next->hold_state(block);
    for (bool goes_on = true; goes_on;) {
      const auto began = std::chrono::steady_clock::now();
      goes_on = run_round();
      pause_after(Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count()));
    }
    return;
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
  // So that nobody waits for this rank.
  facts_.comm.decline(terms_.epoch, failure_), facts_.comm.drop(terms_.epoch);
}

// Everybody begins all of a round before waiting for any of it, so whoever is in the earliest round can go on.
bool Precopy::run_round() {
  std::vector<Turn> turns;
  for (Stream& stream : streams_) {
    if (stream.is_over || stream.num_gone == stream.messages.size()) continue;
    Turn& turn = turns.emplace_back(Turn{&stream});
    if (stream.is_send) turn.values = staged(stream.messages[stream.num_gone]);
    turn.goes_on = at::full({1}, turn.values.defined() ? 1 : 0, at::kLong);
  }
  for (Turn& turn : turns) turn.pending = start(*turn.stream, turn.goes_on, kGoesOnTag);
  for (Turn& turn : turns) {
    wait(*turn.pending);
    turn.stream->is_over = *turn.goes_on.const_data_ptr<std::int64_t>() == 0;
  }
  std::erase_if(turns, [](const Turn& turn) { return turn.stream->is_over; });
  for (Turn& turn : turns) {
    Stream& stream = *turn.stream;
    std::int64_t count = 0;
    for (const Slice& slice : stream.messages[stream.num_gone])
      count += elements_of(slice.box, views_.fields(slice.of->tensor).size());
    if (!stream.is_send) turn.values = at::empty({count}, types_.wide);
    turn.pending = start(stream, turn.values, kEarlyTag);
  }
  for (Turn& turn : turns) {
    wait(*turn.pending);
    if (!turn.stream->is_send) put(turn.stream->messages[turn.stream->num_gone], turn.values);
    ++turn.stream->num_gone;
  }
  return !turns.empty();
}

std::unique_ptr<Pending> Precopy::start(const Stream& stream, const at::Tensor& values, int tag) {
  return stream.is_send ? facts_.comm.send_ahead(terms_.epoch, stream.peer, values, tag, kWhat)
                        : facts_.comm.receive_ahead(terms_.epoch, stream.peer, values, tag, kWhat);
}

void Precopy::wait(Pending& pending) const {
  done_or_throw(pending.wait(Deadline::after(options_.patience, kWhat)));
}

// A copy: what is sent may change before it is gone. Undefined when the update has come.
at::Tensor Precopy::staged(const Message& message) {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return {};
  std::vector<at::Tensor> pieces;
  std::int64_t count = 0, offset = 0;
  for (const Slice& slice : message)
    for (const at::Tensor& value : views_.values(*facts_.ends.old, slice.of->tensor, slice.box))
      pieces.push_back(value), count += value.numel();
  at::Tensor result = at::empty({count}, types_.wide);
  for (const at::Tensor& piece : pieces) {
    result.narrow(0, offset, piece.numel()).view(piece.sizes()).copy_(piece);
    offset += piece.numel();
  }
  return result;
}

void Precopy::put(const Message& message, const at::Tensor& values) {
  std::int64_t offset = 0;
  for (const Slice& slice : message)
    for (const at::Tensor& place : views_.values(*facts_.ends.next, slice.of->tensor, slice.box)) {
      place.copy_(values.narrow(0, offset, place.numel()).view(place.sizes()));
      offset += place.numel();
    }
  received_ += Bytes(static_cast<std::int64_t>(values.nbytes()));
}

void Precopy::pause_after(Seconds round) {
  std::unique_lock lock(mutex_);
  const std::chrono::duration<double> rest(round.value * (1 / options_.share - 1));
  changed_.wait_for(lock, rest, [&] { return is_closed_; });
}

void Precopy::note_gone() {
  for (const Stream& stream : streams_)
    for (std::size_t m = 0; m < stream.num_gone; ++m)
      for (const Slice& slice : stream.messages[m]) {
        const auto [known, is_new] = gone_.try_emplace(slice.of, slice.box);
        if (!is_new) known->second[0].end = slice.box[0].end;  // slices follow each other
      }
}

Box Precopy::gone(const RankShare::Operation& operation) const {
  const auto found = gone_.find(&operation);
  return found == gone_.end() ? Box{} : found->second;
}

void Precopy::repeat_update(const UpdateFacts& update, std::int64_t num_updates) {
  if (num_updates == terms_.num_updates) return;
  ensure(num_updates == terms_.num_updates + 1, "{} updates since state was sent early, of {}", num_updates,
         terms_.num_updates);
  has_update_ = true, update_ = update.options;
  numbers_ = at::tensor(at::ArrayRef<double>(update.numbers.data(), update.numbers.size()), at::kDouble);
  std::size_t num_rounds = 0;
  for (const Stream& stream : streams_) num_rounds = std::max(num_rounds, stream.num_gone);
  std::deque<std::vector<Exchange>> under_way;
  for (std::size_t round = 0; round < num_rounds; ++round) {
    under_way.push_back(begin_gradients(round));
    if (under_way.size() < kRoundsUnderWay) continue;
    end_gradients(std::move(under_way.front()));
    under_way.pop_front();
  }
  for (std::vector<Exchange>& exchanges : under_way) end_gradients(std::move(exchanges));
}

std::vector<Precopy::Exchange> Precopy::begin_gradients(std::size_t round) {
  std::vector<Exchange> exchanges;
  for (const Stream& stream : streams_) {
    if (round >= stream.num_gone) continue;
    const Message& message = stream.messages[round];
    std::int64_t count = 0, offset = 0;
    for (const Slice& slice : message)
      if (views_.has_moments(slice.of->tensor)) count += slice.box.num_elements();
    if (count == 0) continue;
    Exchange& next = exchanges.emplace_back(Exchange{&message, stream.is_send});
    next.values = at::empty({count}, types_.wide);
    for (const Slice& slice : message) {
      if (!stream.is_send || !views_.has_moments(slice.of->tensor)) continue;
      const at::Tensor gradient = views_.gradient(*facts_.ends.old, slice.of->tensor, slice.box);
      next.values.narrow(0, offset, gradient.numel()).view(gradient.sizes()).copy_(gradient);
      offset += gradient.numel();
    }
    next.pending = stream.is_send ? facts_.comm.send(stream.peer, next.values, kGradientTag, "gradients")
                                  : facts_.comm.receive(stream.peer, next.values, kGradientTag, "gradients");
  }
  return exchanges;
}

void Precopy::end_gradients(std::vector<Exchange> exchanges) {
  for (Exchange& exchange : exchanges) {
    wait(*exchange.pending);
    if (exchange.is_send) continue;
    received_again_ += Bytes(static_cast<std::int64_t>(exchange.values.nbytes()));
    std::int64_t offset = 0;
    for (const Slice& slice : *exchange.message) {
      if (!views_.has_moments(slice.of->tensor)) continue;
      repeat(slice, exchange.values.narrow(0, offset, slice.box.num_elements()));
      offset += slice.box.num_elements();
    }
  }
}

// Moments without their masters: those do not depend on these.
void Precopy::repeat(const Slice& slice, const at::Tensor& gradient) {
  std::vector<at::Tensor> state = views_.values(*facts_.ends.next, slice.of->tensor, slice.box);
  if (!views_.has_masters(slice.of->tensor))
    state.insert(state.begin(), at::zeros(gradient.sizes(), types_.wide));
  update(views_.name_of(slice.of->tensor), {.beta1 = update_.beta1, .beta2 = update_.beta2}, gradient, state);
}

// An update that leaves moments as they are: nothing is added to them.
void Precopy::repeat_masters() {
  if (!has_update_) return;
  for (const Stream& stream : streams_)
    for (std::size_t m = 0; !stream.is_send && m < stream.num_gone; ++m)
      for (const Slice& slice : stream.messages[m]) {
        const int tensor = slice.of->tensor;
        if (views_.has_moments(tensor)) continue;
        std::vector<at::Tensor> state = views_.values(*facts_.ends.next, tensor, slice.box);
        for (const at::Tensor& moment :
             views_.values(*facts_.ends.next, views_.moments_of(tensor), slice.box))
          state.push_back(moment);
        update(views_.name_of(tensor), {.beta1 = 1, .beta2 = 1},
               at::zeros({slice.box.num_elements()}, types_.wide), state);
      }
}

// The kernel that the sender's engine has used, of the same types.
void Precopy::update(const std::string& name, AdamOptions options, const at::Tensor& gradient,
                     const std::vector<at::Tensor>& state) {
  const Parameters& next = *facts_.ends.next;
  const bool is_own = next.find(name) != nullptr;
  const HeldTensor& held = *(is_own ? next : *next.copies()).find(name);
  options.epsilon = update_.epsilon, options.weight_decay = held.has_weight_decay ? update_.weight_decay : 0;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& values : state) flat.push_back(flat_of(values));
  at::Tensor weights =
      types_.element == types_.wide ? flat[0] : at::empty({gradient.numel()}, types_.element);
  kernels_->adamw(options, numbers_, gradient, flat[0], flat[1], flat[2], weights);
  for (std::size_t i = 0; i < state.size(); ++i)
    if (!state[i].is_contiguous()) state[i].copy_(flat[i].view(state[i].sizes()));
}

}  // namespace optimus
