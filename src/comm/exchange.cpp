// See exchange.h.
#include "comm/exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "comm/sum.h"

namespace optimus {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kSegmentsAhead = 2;  // number of segments that are received while one is added

// Combines the operation's index with a hash of the properties on which all members must agree. Mismatched
// operations therefore never exchange data. They fail at the deadline instead of writing into each other's
// memory. The lowest bit distinguishes the two stages of an all_reduce.
int tag_of(const CommOperation& operation, std::int64_t number) {
  std::uint64_t hash = static_cast<std::uint64_t>(operation.bytes());
  for (const std::uint64_t property :
       {static_cast<std::uint64_t>(operation.kind), static_cast<std::uint64_t>(operation.sum),
        static_cast<std::uint64_t>(operation.root),
        static_cast<std::uint64_t>((operation.from.defined() ? operation.from : operation.to).scalar_type())})
    hash = (hash ^ property) * 0x9e3779b97f4a7c15U;
  return static_cast<int>((number & 0x3fff) << 16 | static_cast<std::int64_t>(hash >> 49) << 1);
}

// Members form a binomial tree whose root is member 0. Clearing the lowest set bit of a member's index gives
// its parent. That bit is also the maximum size of the member's subtree, a contiguous range of indices that
// starts with the member.
int parent_of(int member_index) { return member_index & (member_index - 1); }
int subtree_size(int member_index, int size) {
  const int subtree_limit = member_index == 0 ? size : member_index & -member_index;
  return std::min(subtree_limit, size - member_index);
}
// The children with the largest subtrees come first, because their subtrees are the deepest.
std::vector<int> children_of(int member_index, int size) {
  std::vector<int> result;
  for (int bit = 1; bit < subtree_size(member_index, size); bit *= 2)
    result.insert(result.begin(), member_index + bit);
  return result;
}

}  // namespace

at::Tensor ScratchMemory::take(std::int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto match = std::find_if(free_.begin(), free_.end(),
                                    [&](const at::Tensor& memory) { return memory.numel() >= bytes; });
    if (match != free_.end()) {
      at::Tensor memory = std::move(*match);
      free_.erase(match);
      return memory;
    }
    if (!free_.empty()) free_.pop_back();  // it is too small, so the new buffer replaces it
  }
  return at::empty({bytes}, at::kByte);
}

void ScratchMemory::give_back(at::Tensor memory) {
  if (!memory.defined()) return;
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(memory));
}

MemberExchange::MemberExchange(CommOperation operation, GroupLink& link, ScratchMemory& scratch,
                               std::int64_t number, AlgorithmThresholds sizes)
    : operation_(std::move(operation)),
      link_(link),
      scratch_(scratch),
      size_(link.size()),
      member_index_(link.group_index()),
      tag_(tag_of(operation_, number)),
      sizes_(sizes) {}

MemberExchange::MemberExchange(CommOperation message, GroupLink& link, ScratchMemory& scratch, int peer,
                               int tag)
    : operation_(std::move(message)),
      link_(link),
      scratch_(scratch),
      size_(link.size()),
      member_index_(link.group_index()),
      tag_(tag),
      peer_(peer),
      sizes_{} {}

MemberExchange::~MemberExchange() {
  messages_.clear();  // Gloo must not write into memory that is lent to another operation
  scratch_.give_back(std::move(memory_));
}

std::vector<int> MemberExchange::peers() const {
  std::vector<int> result;
  for (int i = 1; i < size_; ++i) result.push_back((member_index_ + i) % size_);
  return result;
}

std::size_t MemberExchange::send(int member_index, const at::Tensor& row, int tag) {
  messages_.push_back({link_.send(member_index, row, tag), member_index, false, tag != tag_});
  return messages_.size() - 1;
}

std::size_t MemberExchange::receive(int member_index, const at::Tensor& row, int tag) {
  messages_.push_back({link_.receive(member_index, row, tag), member_index, true, tag != tag_});
  return messages_.size() - 1;
}

bool MemberExchange::is_tree() const {
  if (size_ <= sizes_.max_direct_members) return false;
  return operation_.kind == CommKind::broadcast ||
         (operation_.kind == CommKind::all_reduce && operation_.bytes() <= sizes_.tree_max_bytes);
}

bool MemberExchange::is_split() const {
  if (operation_.kind == CommKind::reduce_scatter) return true;
  if (operation_.kind != CommKind::all_reduce || is_tree()) return false;
  return operation_.bytes() >= sizes_.split_min_bytes || size_ > sizes_.max_direct_members;
}

bool MemberExchange::has_stages() const {
  if (is_tree()) return true;
  if (size_ == 1 || !is_split()) return false;
  return operation_.kind == CommKind::all_reduce ||
         num_segments(piece(operation_.from, member_index_)) > kSegmentsAhead;
}

at::Tensor MemberExchange::piece(const at::Tensor& row, int member_index) const {
  const std::int64_t begin = row.numel() * member_index / size_,
                     end = row.numel() * (member_index + 1) / size_;
  return row.narrow(0, begin, end - begin);
}

std::int64_t MemberExchange::num_segments(const at::Tensor& piece) const {
  return (static_cast<std::int64_t>(piece.nbytes()) + sizes_.segment_bytes - 1) / sizes_.segment_bytes;
}

at::Tensor MemberExchange::segment(const at::Tensor& piece, std::int64_t index) const {
  const std::int64_t segment_elements =
      sizes_.segment_bytes / static_cast<std::int64_t>(piece.element_size());
  return piece.narrow(0, index * segment_elements,
                      std::min(segment_elements, piece.numel() - index * segment_elements));
}

at::Tensor MemberExchange::scratch_row(std::int64_t slot, std::int64_t bytes) const {
  const std::int64_t slot_bytes = memory_.numel() / kAlignment * kAlignment / (kSegmentsAhead * size_);
  const std::int64_t begin = slot * (slot_bytes / kAlignment * kAlignment);
  return memory_.narrow(0, begin, bytes).view(operation_.from.scalar_type());
}

void MemberExchange::begin() {
  if (operation_.bytes() == 0) return;
  if (is_tree()) return begin_tree();
  switch (operation_.kind) {
    case CommKind::connect:
      return;
    case CommKind::all_reduce:
      return is_split() ? begin_pieces() : begin_unsplit();
    case CommKind::reduce_scatter:
      return begin_pieces();
    case CommKind::all_gather:
      return begin_gather();
    case CommKind::broadcast:
      return begin_broadcast();
    case CommKind::send:
      send(peer_, operation_.from, tag_);
      return;
    case CommKind::receive:
      receive(peer_, operation_.to, tag_);
      return;
  }
}

void MemberExchange::begin_unsplit() {
  if (size_ == 1) return;
  memory_ = scratch_.take(kSegmentsAhead * size_ * (operation_.bytes() + 2 * kAlignment));
  segments_.emplace_back();
  for (const int peer : peers())
    segments_[0].push_back(receive(peer, scratch_row(peer, operation_.bytes()), tag_));
  for (const int peer : peers()) send(peer, operation_.from, tag_);
}

// Member p sends the sum of shard p only after it has received this member's shard p, so the sum can be
// received into the memory of that shard.
void MemberExchange::begin_pieces() {
  const at::Tensor own_piece = piece(operation_.from, member_index_);
  const std::int64_t scratch_bytes =
      std::min<std::int64_t>(sizes_.segment_bytes, static_cast<std::int64_t>(own_piece.nbytes()));
  if (size_ > 1) memory_ = scratch_.take(kSegmentsAhead * size_ * (scratch_bytes + 2 * kAlignment));
  for (std::int64_t i = 0; i < std::min(kSegmentsAhead, num_segments(own_piece)); ++i) receive_segment(i);
  for (const int peer : peers()) {
    const at::Tensor peer_piece = piece(operation_.from, peer);
    for (std::int64_t i = 0; i < num_segments(peer_piece); ++i) {
      if (operation_.kind == CommKind::all_reduce) receive(peer, segment(peer_piece, i), tag_ + 1);
      send(peer, segment(peer_piece, i), tag_);
    }
  }
}

void MemberExchange::begin_gather() {
  for (const int peer : peers()) receive(peer, piece(operation_.to, peer), tag_);
  for (const int peer : peers()) send(peer, operation_.from, tag_);
  copy_row(operation_.from, piece(operation_.to, member_index_));
}

void MemberExchange::begin_broadcast() {
  if (member_index_ != operation_.root) {
    receive(operation_.root, operation_.to, tag_);
    return;
  }
  for (const int peer : peers()) send(peer, operation_.from, tag_);
}

// Returns the rows of members `begin` to `end` (exclusive), which were received from the subtree.
at::Tensor MemberExchange::tree_rows(int begin, int end) const {
  const std::int64_t bytes = operation_.bytes();
  return memory_.narrow(0, (begin - member_index_) * bytes, (end - begin) * bytes)
      .view(operation_.from.scalar_type());
}

// For a broadcast, indices are relative to its root.
void MemberExchange::begin_tree() {
  segments_.resize(2);  // [0]: receives from children, [1]: receive from the parent
  if (operation_.kind == CommKind::broadcast) {
    const int relative_index = (member_index_ - operation_.root + size_) % size_;
    if (relative_index != 0)
      segments_[1] = {receive((parent_of(relative_index) + operation_.root) % size_, operation_.to, tag_)};
    else
      send_to_children();
    return;
  }
  memory_ = scratch_.take(subtree_size(member_index_, size_) * operation_.bytes());
  copy_row(operation_.from, tree_rows(member_index_, member_index_ + 1));
  for (const int child : children_of(member_index_, size_))
    segments_[0].push_back(receive(child, tree_rows(child, child + subtree_size(child, size_)), tag_));
  if (member_index_ == 0) return;
  // The sum arrives only after all rows have been sent up, including this member's row, so it can be
  // received into the memory of that row.
  segments_[1] = {receive(parent_of(member_index_), operation_.to, tag_ + 1)};
  if (segments_[0].empty()) send(parent_of(member_index_), tree_rows(member_index_, member_index_ + 1), tag_);
}

void MemberExchange::send_to_children() {
  const bool is_sum = operation_.kind == CommKind::all_reduce;
  const int root = is_sum ? 0 : operation_.root, relative_index = (member_index_ - root + size_) % size_;
  for (const int child : children_of(relative_index, size_))
    send((child + root) % size_, operation_.to, is_sum ? tag_ + 1 : tag_);
}

void MemberExchange::run_tree(Interrupter& interrupter, const Interrupter::Limits& limits) {
  wait_for(segments_[0], interrupter, limits);
  const bool is_sum = operation_.kind == CommKind::all_reduce;
  if (is_sum && member_index_ == 0) {
    std::vector<at::Tensor> rows;
    for (int i = 0; i < size_; ++i) rows.push_back(tree_rows(i, i + 1));
    sum_in_order(rows, operation_.to, operation_.sum);
  } else if (is_sum && !segments_[0].empty()) {
    send(parent_of(member_index_),
         tree_rows(member_index_, member_index_ + subtree_size(member_index_, size_)), tag_);
  }
  wait_for(segments_[1], interrupter, limits);
  if (is_sum || member_index_ != operation_.root) send_to_children();
}

void MemberExchange::receive_segment(std::int64_t index) {
  const std::int64_t bytes =
      static_cast<std::int64_t>(segment(piece(operation_.from, member_index_), index).nbytes());
  segments_.emplace_back();
  for (const int peer : peers())
    segments_.back().push_back(
        receive(peer, scratch_row((index % kSegmentsAhead) * size_ + peer, bytes), tag_));
}

void MemberExchange::add_unsplit() {
  std::vector<at::Tensor> rows;
  for (int i = 0; i < size_; ++i)
    rows.push_back(i == member_index_ ? operation_.from : scratch_row(i, operation_.bytes()));
  sum_in_order(rows, operation_.to, operation_.sum);
}

void MemberExchange::add_segment(std::int64_t index) {
  const at::Tensor own_segment = segment(piece(operation_.from, member_index_), index);
  std::vector<at::Tensor> rows;
  for (int i = 0; i < size_; ++i)
    rows.push_back(i == member_index_ ? own_segment
                                      : scratch_row((index % kSegmentsAhead) * size_ + i,
                                                    static_cast<std::int64_t>(own_segment.nbytes())));
  const bool is_all_reduce = operation_.kind == CommKind::all_reduce;
  const at::Tensor to = is_all_reduce ? own_segment : segment(operation_.to, index);
  sum_in_order(rows, to, operation_.sum);
  if (is_all_reduce)
    for (const int peer : peers()) send(peer, to, tag_ + 1);
}

void MemberExchange::wait_for(const MessageIndices& indices, Interrupter& interrupter,
                              const Interrupter::Limits& limits) {
  for (const std::size_t i : indices) {
    if (messages_[i].is_done) continue;
    interrupter.wait(*messages_[i].transfer, link_, messages_[i].member_index, limits);
    messages_[i].is_done = true;
    messages_[i].transfer.reset();
  }
}

void MemberExchange::run(Interrupter& interrupter, const Interrupter::Limits& limits) {
  if (operation_.bytes() == 0) return;
  if (is_tree()) run_tree(interrupter, limits);
  if (is_split()) {
    const std::int64_t count = num_segments(piece(operation_.from, member_index_));
    for (std::int64_t i = 0; i < count; ++i) {
      wait_for(segments_[static_cast<std::size_t>(i)], interrupter, limits);
      add_segment(i);
      if (i + kSegmentsAhead < count) receive_segment(i + kSegmentsAhead);
    }
  }
  MessageIndices all_messages(messages_.size());
  for (std::size_t i = 0; i < all_messages.size(); ++i) all_messages[i] = i;
  wait_for(all_messages, interrupter, limits);
  if (operation_.kind == CommKind::all_reduce && !is_split() && !is_tree()) add_unsplit();
}

MemberExchange::Unfinished MemberExchange::give_up() {
  Unfinished result;
  result.is_relayed = is_tree();
  std::vector<Message*> open;
  for (Message& message : messages_) {
    if (message.is_done) continue;
    message.transfer->interrupt();
    try {
      message.transfer->wait(std::chrono::hours(1));
      open.push_back(&message);
    } catch (const LinkError&) {
      result.closed.insert(message.member_index);
    }
  }
  // Only a wait with a timeout shows whether a message has arrived. When it times out, it also closes the
  // connections, which is intended here. Members that sent no data are reported. If all data has arrived, the
  // members that sent no sum are reported, although they may have been waiting themselves. If all sums have
  // arrived too, the members that received nothing are reported.
  std::set<int> senders, sum_senders, receivers;
  for (Message* message : open) {
    try {
      message->is_done = message->transfer->wait(std::chrono::milliseconds(1));
    } catch (const LinkError&) {
      (!message->is_receive ? receivers
       : message->is_second ? sum_senders
                            : senders)
          .insert(message->member_index);
    }
  }
  result.silent = !senders.empty() ? senders : !sum_senders.empty() ? sum_senders : receivers;
  return result;
}

}  // namespace optimus
