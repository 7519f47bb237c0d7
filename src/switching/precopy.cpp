// Implements the part of precopy.h that sends state. precopy_update.cpp repeats the update.
#include "switching/precopy.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "kernels/kernels.h"

namespace optimus {
namespace {

constexpr int kPrecopyTag = 0x7fd0, kContinueTag = 0x7fd1;  // not used by other messages
constexpr const char* kPrecopyState = "early state";
// ATen copies up to this many elements on one thread. More threads would compete with the step for cores.
constexpr std::int64_t kMaxSliceElements = 32768;

std::int64_t elements_of(const Box& box, std::size_t num_fields) {
  return box.num_elements() * static_cast<std::int64_t>(num_fields);
}

}  // namespace

// The messages of one stream in one round.
struct Precopy::Turn {
  Stream* stream = nullptr;
  at::Tensor has_more{}, values{};
  std::unique_ptr<Pending> pending{};
};

Precopy::Precopy(const PrecopyContext& context, const PrecopyTerms& terms, const PrecopyOptions& options)
    : context_(context),
      terms_(terms),
      options_(options),
      views_(context.change),
      types_(types_of(context.change.to.precision)),
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
  record_sent_rows();
  return failure_;
}

// Sender and receiver process the same boxes in the same order, so both split them identically.
void Precopy::plan_streams() {
  std::map<std::pair<int, bool>, Stream> streams;
  std::map<std::pair<int, bool>, std::int64_t> last_size;  // elements in the last message
  const std::int64_t max_elements =
      options_.message.value / static_cast<std::int64_t>(at::elementSize(types_.wide));
  for (const PrecopyRows& rows : precopy_rows(context_.change, context_.share, terms_.num_waves)) {
    const std::pair<int, bool> key{rows.of->peer.value, rows.of->is_send};
    Stream& stream = streams.try_emplace(key, Stream{key.first, key.second}).first->second;
    const std::size_t num_fields = views_.fields(rows.of->tensor).size();
    const std::int64_t row = rows.box.num_elements() / rows.box[0].size();
    const std::int64_t step = std::max<std::int64_t>(1, kMaxSliceElements / row);
    for (std::int64_t begin = rows.box[0].begin; begin < rows.box[0].end; begin += step) {
      Slice slice{rows.of, rows.box};
      slice.box[0] = {begin, std::min(rows.box[0].end, begin + step)};
      const std::int64_t count = elements_of(slice.box, num_fields);
      if (stream.messages.empty() || last_size[key] + count > max_elements)
        stream.messages.emplace_back(), last_size[key] = 0;
      stream.messages.back().push_back(slice), last_size[key] += count;
    }
  }
  for (auto& [key, stream] : streams) streams_.push_back(std::move(stream));
}

void Precopy::run() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd_dispatch;
  try {
    for (const int block : context_.blocks) context_.ends.next->allocate_state(block);
    while (const std::optional<Seconds> round = run_round()) pause_after(*round);
    return;
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
  // Notifies the other ranks, so that they do not wait for this one.
  context_.comm.decline(terms_.epoch, failure_), context_.comm.drop(terms_.epoch);
}

// Each rank starts all messages of a round before it waits for any of them, so ranks in the earliest round
// can always continue. Returns how long messages with state were in flight, or nullopt after the last round.
// The wait for ranks that are still pausing is excluded, because otherwise each pause would lengthen the next
// one.
std::optional<Seconds> Precopy::run_round() {
  std::vector<Turn> turns;
  for (Stream& stream : streams_) {
    if (stream.has_ended || stream.num_sent == stream.messages.size()) continue;
    Turn& turn = turns.emplace_back(Turn{&stream});
    if (stream.is_send) turn.values = staging_copy(stream.messages[stream.num_sent]);
    turn.has_more = at::full({1}, turn.values.defined() ? 1 : 0, at::kLong);
  }
  for (Turn& turn : turns) turn.pending = start(*turn.stream, turn.has_more, kContinueTag);
  for (Turn& turn : turns) {
    wait(*turn.pending);
    turn.stream->has_ended = *turn.has_more.const_data_ptr<std::int64_t>() == 0;
  }
  std::erase_if(turns, [](const Turn& turn) { return turn.stream->has_ended; });
  if (turns.empty()) return std::nullopt;
  const auto begin_time = std::chrono::steady_clock::now();
  for (Turn& turn : turns) {
    Stream& stream = *turn.stream;
    std::int64_t count = 0;
    for (const Slice& slice : stream.messages[stream.num_sent])
      count += elements_of(slice.box, views_.fields(slice.of->tensor).size());
    if (!stream.is_send) turn.values = at::empty({count}, types_.wide);
    turn.pending = start(stream, turn.values, kPrecopyTag);
  }
  for (Turn& turn : turns) {
    wait(*turn.pending);
    if (!turn.stream->is_send) store_received(turn.stream->messages[turn.stream->num_sent], turn.values);
    ++turn.stream->num_sent;
  }
  return Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count());
}

std::unique_ptr<Pending> Precopy::start(const Stream& stream, const at::Tensor& values, int tag) {
  return stream.is_send ? context_.comm.send_ahead(terms_.epoch, stream.peer, values, tag, kPrecopyState)
                        : context_.comm.receive_ahead(terms_.epoch, stream.peer, values, tag, kPrecopyState);
}

void Precopy::wait(Pending& pending) const {
  throw_if_failed(pending.wait(Deadline::after(options_.timeout, kPrecopyState)));
}

// Copies the message's values, because the source may change before they are sent. Returns an undefined
// tensor after close() has been called.
at::Tensor Precopy::staging_copy(const Message& message) {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return {};
  std::vector<at::Tensor> pieces;
  std::int64_t count = 0, offset = 0;
  for (const Slice& slice : message)
    for (const at::Tensor& value : views_.values(*context_.ends.old, slice.of->tensor, slice.box))
      pieces.push_back(value), count += value.numel();
  at::Tensor result = at::empty({count}, types_.wide);
  for (const at::Tensor& piece : pieces) {
    result.narrow(0, offset, piece.numel()).view(piece.sizes()).copy_(piece);
    offset += piece.numel();
  }
  return result;
}

void Precopy::store_received(const Message& message, const at::Tensor& values) {
  std::int64_t offset = 0;
  for (const Slice& slice : message)
    for (const at::Tensor& target : views_.values(*context_.ends.next, slice.of->tensor, slice.box)) {
      target.copy_(values.narrow(0, offset, target.numel()).view(target.sizes()));
      offset += target.numel();
    }
  received_ += Bytes(static_cast<std::int64_t>(values.nbytes()));
}

void Precopy::pause_after(Seconds round) {
  std::unique_lock lock(mutex_);
  const std::chrono::duration<double> pause(round.value * (1 / options_.max_link_share - 1));
  changed_.wait_for(lock, pause, [&] { return is_closed_; });
}

void Precopy::record_sent_rows() {
  for (const Stream& stream : streams_)
    for (std::size_t m = 0; m < stream.num_sent; ++m)
      for (const Slice& slice : stream.messages[m]) {
        const auto [entry, is_new] = sent_rows_.try_emplace(slice.of, slice.box);
        if (!is_new) entry->second[0].end = slice.box[0].end;  // slices are contiguous
      }
}

Box Precopy::sent_rows(const RankShare::Operation& operation) const {
  const auto match = sent_rows_.find(&operation);
  return match == sent_rows_.end() ? Box{} : match->second;
}

}  // namespace optimus
