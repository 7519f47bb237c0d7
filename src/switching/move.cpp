// Implements move.h.
#include "switching/move.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "checkpoint/checksum.h"

namespace optimus {
namespace {

constexpr int kMoveTag = 0x7ff0;  // not used by any message of a step
constexpr const char* kMoveDescription = "moving state";

// Whether masters and moments have the same layout, so that their buffers can be reused.
bool have_same_layout(const BlockShape& a, const BlockShape& b) {
  for (const StateKind kind : {StateKind::weights, StateKind::optimizer})
    if (a.is_sharded(kind) != b.is_sharded(kind) || a.elements(kind) != b.elements(kind)) return false;
  if (a.num_shards != b.num_shards || a.shard != b.shard || a.tensors.size() != b.tensors.size())
    return false;
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    const LocalTensor &x = a.tensors[i], &y = b.tensors[i];
    if (x.tensor != y.tensor || x.box != y.box || x.offset != y.offset || x.shard_offset != y.shard_offset)
      return false;
  }
  return true;
}

bool have_same_layout(const Parameters& a, const Parameters& b, int block) {
  if (!have_same_layout(a.shape(block), b.shape(block))) return false;
  static const BlockShape kNothing;
  const auto shape_of_copies = [&](const Parameters& of) -> const BlockShape& {
    return of.copies() == nullptr ? kNothing : of.copies()->shape(block);
  };
  return have_same_layout(shape_of_copies(a), shape_of_copies(b));
}

// Returns the size of a block's masters and moments, including redundant copies for other ranks.
std::int64_t state_bytes(const Parameters& of, int block, Precision precision) {
  const BlockShape& shape = of.shape(block);
  if (shape.tensors.empty()) return 0;
  const std::int64_t width = std::max(4, bytes_of(precision));
  const StateKind masters = bytes_of(precision) < 4 ? StateKind::optimizer : StateKind::weights;
  const std::int64_t own_elements = shape.elements(masters) + 2 * shape.elements(StateKind::optimizer);
  if (of.copies() == nullptr) return width * own_elements;
  const BlockShape& copied = of.copies()->shape(block);
  // If masters are not sharded, `own_elements` already includes them.
  const std::int64_t fields = copied.is_sharded(masters) ? 3 : 2;
  return width * (own_elements + fields * copied.elements(StateKind::optimizer));
}

// Returns the resident boxes of a tensor's field: the rank's own box and the box that it copies for other
// ranks.
std::vector<Box> boxes_of(const Parameters& of, const std::string& name, at::Tensor BlockState::*field) {
  std::vector<Box> result{of.box(name, field)};
  if (of.copies() != nullptr && of.copies()->view(name, field).defined())
    result.push_back(of.copies()->box(name, field));
  return result;
}

Bytes bytes_in(const std::vector<at::Tensor>& values) {
  std::int64_t sum = 0;
  for (const at::Tensor& value : values) sum += static_cast<std::int64_t>(value.nbytes());
  return Bytes(sum);
}

at::Tensor checksum_of(const at::Tensor& values) {
  const at::Tensor host_values = values.to(at::kCPU);
  const Checksum sum =
      checksum({static_cast<const std::byte*>(host_values.const_data_ptr()), host_values.nbytes()});
  return at::full({1}, static_cast<std::int64_t>(sum.value), at::kLong);
}

at::Tensor flat_copy(const std::vector<at::Tensor>& values) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& value : values) flat.push_back(value.reshape({-1}));
  return at::cat(flat);
}

}  // namespace

// A message in flight. When it is complete, received values are copied to their destinations, unless they
// were received in place.
struct StateMover::Message {
  std::vector<at::Tensor> targets{};  // destinations of received values
  at::Tensor values{};                // contiguous
  bool is_copy = false;
  std::unique_ptr<Pending> pending{};
  at::Tensor sum{};  // checksum of the values, computed by the sender; only if MoveOptions::is_checked
  std::unique_ptr<Pending> pending_sum{};
  int peer = 0;
  bool is_send = false;
  std::size_t turn = 0;
};

StateMover::StateMover(const PlanChange& change, int rank, MoveEnds ends, Comm& comm,
                       const MoveOptions& options)
    : change_(change),
      rank_(rank),
      share_(share_of(change, rank)),
      ends_(ends),
      comm_(comm),
      options_(options),
      views_(change),
      max_staged_(std::min(options.max_in_flight, Bytes(change.spare_memory.value / 2))) {
  plan_turns();
  plan_memory();
}

StateMover::~StateMover() = default;

// Creates one turn per wave. Tensors that do not move between ranks belong to the turn of the block with
// which they share buffers. Blocks that contain only such tensors come last.
void StateMover::plan_turns() {
  std::set<int> moving_tensors;
  std::map<int, std::size_t> turn_of;  // keyed by block
  const auto block_of = [&](int tensor) { return views_.block_of(tensor); };
  for (const RankShare::Wave& wave : share_.waves) {
    for (const int tensor : wave.tensors) turn_of[block_of(tensor)] = turns_.size();
    turns_.push_back({.tensors = wave.tensors, .wave = &wave});
    moving_tensors.insert(wave.tensors.begin(), wave.tensors.end());
  }
  for (int tensor = 0; tensor < static_cast<int>(change_.old_layout.tensors.size()); ++tensor) {
    if (moving_tensors.contains(tensor)) continue;
    const auto [turn, is_new] = turn_of.try_emplace(block_of(tensor), turns_.size());
    if (is_new) turns_.emplace_back();
    turns_[turn->second].tensors.push_back(tensor);
  }

  std::map<int, int> last_turn;   // keyed by old block
  std::set<int> assigned_blocks;  // new blocks that have a turn
  for (int t = 0; t < static_cast<int>(turns_.size()); ++t)
    for (const int tensor : turns_[static_cast<std::size_t>(t)].tensors) {
      if (ends_.old != nullptr && ends_.old->find(name_of(tensor)) != nullptr)
        last_turn[ends_.old->block_of(name_of(tensor))] = t;
      if (ends_.next == nullptr || ends_.next->find(name_of(tensor)) == nullptr) continue;
      const int block = ends_.next->block_of(name_of(tensor));
      if (!assigned_blocks.insert(block).second) continue;
      const bool is_reused = ends_.old != nullptr && have_same_layout(*ends_.old, *ends_.next, block);
      Turn& turn = turns_[static_cast<std::size_t>(t)];
      (is_reused ? turn.reused : turn.allocated).push_back(block);
    }
  for (const auto& [block, turn] : last_turn)
    turns_[static_cast<std::size_t>(turn)].released.push_back(block);
}

// For each turn, computes how many turns must have ended before it starts. Also computes the resulting peak
// memory.
void StateMover::plan_memory() {
  const Precision precision = change_.to.precision;
  const auto total = [&](const Parameters* of) {
    std::int64_t sum = 0;
    for (int block = 0; of != nullptr && block < of->num_blocks(); ++block)
      sum += state_bytes(*of, block, precision);
    return sum;
  };
  const std::int64_t limit =
      std::max(total(ends_.old), total(ends_.next)) + change_.spare_memory.value - max_staged_.value;
  std::set<int> reused;
  for (const Turn& turn : turns_) reused.insert(turn.reused.begin(), turn.reused.end());
  std::int64_t in_use = total(ends_.old);
  for (const int block : precopy_blocks_) in_use += state_bytes(*ends_.next, block, precision);
  std::int64_t peak = in_use;
  std::size_t num_ended = 0;
  for (std::size_t t = 0; t < turns_.size(); ++t) {
    std::int64_t added = 0;
    for (const int block : turns_[t].allocated)
      if (!precopy_blocks_.contains(block)) added += state_bytes(*ends_.next, block, precision);
    for (; num_ended < t && in_use + added > limit && !options_.retains_old; ++num_ended)
      for (const int block : turns_[num_ended].released)
        if (!reused.contains(block)) in_use -= state_bytes(*ends_.old, block, precision);
    turns_[t].waits_for = num_ended;
    in_use += added, peak = std::max(peak, in_use);
  }
  peak_bytes_ = Bytes(peak) + max_staged_;
}

void StateMover::set_retains_old(bool retains_old) {
  options_.retains_old = retains_old;
  plan_memory();
}

std::size_t StateMover::num_precopy_waves(Bytes available) const {
  std::int64_t remaining = available.value, num_streams = 0;
  std::set<std::pair<int, bool>> streams;
  for (std::size_t wave = 0; wave < share_.waves.size(); ++wave) {
    for (const RankShare::Operation& operation : share_.waves[wave].operations)
      streams.insert({operation.peer.value, operation.is_send});
    remaining -= (std::ssize(streams) - std::exchange(num_streams, std::ssize(streams))) *
                 options_.precopy_message.value;  // the staging copy of a pre-copy message
    for (const int block : turns_[wave].allocated)
      remaining -= state_bytes(*ends_.next, block, change_.to.precision);
    if (remaining < 0) return wave;
  }
  return change_.order.waves.size();
}

void StateMover::begin_precopy(const PrecopyTerms& terms) {
  for (std::size_t wave = 0; wave < std::min(terms.num_waves, share_.waves.size()); ++wave)
    precopy_blocks_.insert(turns_[wave].allocated.begin(), turns_[wave].allocated.end());
  plan_memory();
  precopy_ = std::make_unique<Precopy>(
      PrecopyContext{change_, share_, ends_, {precopy_blocks_.begin(), precopy_blocks_.end()}, comm_}, terms,
      PrecopyOptions{.timeout = options_.timeout, .message = options_.precopy_message});
}

void StateMover::close_precopy() {
  if (precopy_ != nullptr) precopy_->close();
}

std::string StateMover::end_precopy() { return precopy_ == nullptr ? "" : precopy_->end(); }

void StateMover::repeat_update(const UpdateRecord& update, std::int64_t num_updates) {
  if (precopy_ != nullptr) precopy_->repeat_update(update, num_updates);
}

MoveReport StateMover::run() {
  for (std::size_t turn = 0; turn < turns_.size(); ++turn) begin(turn);
  while (num_ended_ < num_begun_) finish_oldest_turn();
  if (precopy_ == nullptr) return report_;
  precopy_->repeat_masters();
  report_.early = precopy_->received(), report_.gradients_resent = precopy_->gradients_received();
  report_.received += report_.early;
  return report_;
}

void StateMover::begin(std::size_t number) {
  const Turn& turn = turns_[number];
  while (num_ended_ < turn.waits_for) finish_oldest_turn();
  ++num_begun_;
  allocate_blocks(turn);
  if (turn.wave != nullptr) exchange(*turn.wave);
}

// Data that stays on the rank is copied while messages are in flight.
void StateMover::finish_oldest_turn() {
  copy_local(turns_[num_ended_]);
  while (!in_flight_.empty() && in_flight_.front().turn <= num_ended_) finish_first_message();
  if (!options_.retains_old)
    for (const int block : turns_[num_ended_].released) ends_.old->release(block);
  ++num_ended_;
}

void StateMover::allocate_blocks(const Turn& turn) {
  for (const int block : turn.reused) ends_.next->adopt_state(block, *ends_.old);
  for (const int block : turn.allocated)
    if (!precopy_blocks_.contains(block)) ends_.next->allocate_state(block);
}

// Copies the rank's old boxes, including its copies for other ranks, to the new boxes that overlap them.
// Masters that are not authoritative are skipped, because other ranks send them and may already have done so.
void StateMover::copy_local(const Turn& turn) {
  if (ends_.old == nullptr || ends_.next == nullptr) return;
  for (const int tensor : turn.tensors) {
    const std::string& name = name_of(tensor);
    if (ends_.old->find(name) == nullptr || ends_.next->find(name) == nullptr) continue;
    at::Tensor BlockState::*const field = views_.fields(tensor).front();
    at::Tensor BlockState::*const old_field =
        change_.copies == MasterCopies::owned ? &BlockState::first_moment : field;
    for (const Box& wanted : boxes_of(*ends_.next, name, field))
      for (const Box& allocated : boxes_of(*ends_.old, name, old_field)) {
        const auto overlap = intersect(wanted, allocated);
        if (!overlap) continue;
        const std::vector<at::Tensor> from = views_.values(*ends_.old, tensor, *overlap),
                                      to = views_.values(*ends_.next, tensor, *overlap);
        for (std::size_t i = 0; i < to.size(); ++i)
          if (!to[i].is_alias_of(from[i])) to[i].copy_(from[i]);
      }
  }
}

void StateMover::exchange(const RankShare::Wave& wave) {
  for (const RankShare::Operation& operation : wave.operations) post(operation);
  post_combined();
}

// Posts the operation's box, except rows that were sent early.
void StateMover::post(const RankShare::Operation& operation) {
  const Box sent_rows = precopy_ == nullptr ? Box{} : precopy_->sent_rows(operation);
  if (sent_rows.num_dims == 0) return post_box(operation, operation.box);
  for (const Span rows :
       {Span{operation.box[0].begin, sent_rows[0].begin}, Span{sent_rows[0].end, operation.box[0].end}}) {
    Box remaining_box = operation.box;
    remaining_box[0] = rows;
    if (rows.size() > 0) post_box(operation, remaining_box);
  }
}

// Sender and receiver process the same boxes in the same order, so they split them identically.
void StateMover::post_box(const RankShare::Operation& operation, const Box& box) {
  const Parameters& of = operation.is_send ? *ends_.old : *ends_.next;
  std::vector<at::Tensor> pieces = views_.values(of, operation.tensor, box);
  (operation.is_send ? report_.sent : report_.received) += bytes_in(pieces);
  if (bytes_in(pieces) <= options_.max_combined) {
    const std::pair<int, bool> key{operation.peer.value, operation.is_send};
    auto match = std::find_if(combined_.begin(), combined_.end(),
                              [&](const auto& entry) { return entry.first == key; });
    if (match == combined_.end()) match = combined_.insert(combined_.end(), {key, {}});
    match->second.insert(match->second.end(), pieces.begin(), pieces.end());
    return;
  }
  for (const at::Tensor& piece : pieces) {
    Message message{.values = piece, .is_copy = !piece.is_contiguous()};
    if (message.is_copy && !operation.is_send) message.targets = {piece};
    if (message.is_copy)
      message.values = operation.is_send ? piece.contiguous() : at::empty(piece.sizes(), piece.options());
    start(std::move(message), operation.peer.value, operation.is_send);
  }
}

// Sends small boxes as one message per peer and direction.
void StateMover::post_combined() {
  for (auto& [key, pieces] : std::exchange(combined_, {})) {
    const auto& [peer, is_send] = key;
    Message message{.is_copy = true};
    if (is_send) {
      message.values = flat_copy(pieces);
    } else {
      std::int64_t count = 0;
      for (const at::Tensor& piece : pieces) count += piece.numel();
      message.values = at::empty({count}, pieces.front().options());
      message.targets = std::move(pieces);
    }
    start(std::move(message), peer, is_send);
  }
}

void StateMover::start(Message message, int peer, bool is_send) {
  if (message.is_copy) staged_ += bytes_in({message.values});
  while (staged_ > max_staged_ && !in_flight_.empty()) finish_first_message();
  message.peer = peer, message.is_send = is_send, message.turn = num_begun_ - 1;
  const auto begin = [&](const at::Tensor& values, int tag) {
    return is_send ? comm_.send(peer, values, tag, kMoveDescription)
                   : comm_.receive(peer, values, tag, kMoveDescription);
  };
  message.pending = begin(message.values, kMoveTag);
  if (options_.is_checked) {
    message.sum = is_send ? checksum_of(message.values) : at::empty({1}, at::kLong);
    message.pending_sum = begin(message.sum, kMoveTag + 1);
  }
  ++report_.num_messages;
  in_flight_.push_back(std::move(message));
}

void StateMover::finish_first_message() {
  Message message = std::move(in_flight_.front());
  in_flight_.erase(in_flight_.begin());
  const Deadline deadline = Deadline::after(options_.timeout, kMoveDescription);
  throw_if_failed(message.pending->wait(deadline));
  if (message.pending_sum != nullptr) {
    throw_if_failed(message.pending_sum->wait(deadline));
    ensure(message.is_send || at::equal(message.sum, checksum_of(message.values)),
           "state from rank {} arrived at rank {} with a wrong checksum", message.peer, rank_);
  }
  std::int64_t offset = 0;
  for (at::Tensor& target : message.targets) {
    target.copy_(message.values.view({-1}).narrow(0, offset, target.numel()).view(target.sizes()));
    offset += target.numel();
  }
  if (message.is_copy) staged_ -= bytes_in({message.values});
}

}  // namespace optimus
