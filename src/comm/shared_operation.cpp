// Implements shared_operation.h.
#include "comm/shared_operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/sum.h"

namespace optimus {
namespace {

bool is_message(CommKind kind) { return kind == CommKind::send || kind == CommKind::receive; }

bool is_match(const CommOperation& a, const CommOperation& b) {
  if (is_message(a.kind) && is_message(b.kind) && a.kind != b.kind)
    return a.bytes() == b.bytes() && (a.from.defined() ? a.from : a.to).scalar_type() ==
                                         (b.from.defined() ? b.from : b.to).scalar_type();
  if (a.kind != b.kind || a.bytes() != b.bytes() || a.sum != b.sum || a.root != b.root) return false;
  return !a.from.defined() || a.from.scalar_type() == b.from.scalar_type();
}

// Returns piece `piece` of a row that is split into `num_pieces` pieces of nearly equal size.
at::Tensor piece_of(const at::Tensor& row, std::size_t piece, std::size_t num_pieces) {
  const auto edge = [&](std::size_t i) {
    return row.numel() * static_cast<std::int64_t>(i) / static_cast<std::int64_t>(num_pieces);
  };
  return row.narrow(0, edge(piece), edge(piece + 1) - edge(piece));
}

}  // namespace

SharedOperation::SharedOperation(std::vector<int> members)
    : members_(std::move(members)), contributions_(members_.size()) {
  for (auto& marks : marks_) marks.resize(members_.size());
}

void SharedOperation::submit(int member_index, CommOperation operation) {
  Contribution& contribution = contributions_[static_cast<std::size_t>(member_index)];
  ensure(!contribution.has_arrived, "rank {} submitted {} twice",
         members_[static_cast<std::size_t>(member_index)], operation.text());
  // Every operation is compared with the one that was submitted first.
  if (const Contribution& first = contributions_[first_arrived_];
      num_arrived_ > 0 && !is_match(first.operation, operation))
    mark_broken({fmt::format("rank {} started {} ({}), but rank {} started {} ({})",
                             members_[static_cast<std::size_t>(member_index)], operation.text(),
                             optimus::text(Bytes(operation.bytes())), members_[first_arrived_],
                             first.operation.text(), optimus::text(Bytes(first.operation.bytes()))),
                 {}});
  if (num_arrived_ == 0) first_arrived_ = static_cast<std::size_t>(member_index);
  const at::Tensor& tensor = operation.from.defined() ? operation.from : operation.to;
  if (tensor.defined()) contribution.ready_mark = StreamMark::of(tensor.device());
  if (operation.kind == CommKind::all_reduce) num_stages_ = 2;
  contribution.operation = std::move(operation);
  contribution.has_arrived = true;
  ++num_arrived_;
  changed.notify_all();
}

void SharedOperation::mark_broken(BreakReason break_reason) {
  if (!break_reason_ && !is_done()) break_reason_ = std::move(break_reason);
  changed.notify_all();
}

std::vector<int> SharedOperation::missing() const {
  std::vector<int> result;
  for (std::size_t i = 0; i < contributions_.size(); ++i)
    if (!contributions_[i].has_arrived) result.push_back(members_[i]);
  return result;
}

std::optional<std::size_t> SharedOperation::claim_part() {
  if (break_reason_ || !is_complete() || is_done() || next_part_ == contributions_.size())
    return std::nullopt;
  ++num_running_;
  return next_part_++;
}

void SharedOperation::finish_part(std::size_t part, StreamMark mark) {
  --num_running_;
  marks_[stage_][part] = std::move(mark);
  if (++num_ended_ == contributions_.size()) ++stage_, next_part_ = 0, num_ended_ = 0;
  changed.notify_all();
}

at::Device SharedOperation::device_of(std::size_t part) const {
  const CommOperation& operation = contributions_[part].operation;
  const at::Tensor& tensor = operation.to.defined() ? operation.to : operation.from;
  return tensor.defined() ? tensor.device() : at::Device(at::kCPU);
}

// In this stage, no other call accesses piece `piece` of any tensor.
void SharedOperation::reduce_piece(std::size_t piece) {
  std::vector<at::Tensor> pieces;
  for (const Contribution& contribution : contributions_)
    pieces.push_back(piece_of(contribution.operation.from, piece, contributions_.size()));
  const CommOperation& operation = contributions_[piece].operation;
  const at::Tensor& to = operation.to;
  sum_in_order(pieces,
               operation.kind == CommKind::reduce_scatter ? to : piece_of(to, piece, contributions_.size()),
               operation.sum);
}

void SharedOperation::gather_pieces(std::size_t member_index) {
  const CommOperation& operation = contributions_[member_index].operation;
  const bool is_gather = operation.kind == CommKind::all_gather;
  for (std::size_t i = 0; i < contributions_.size(); ++i) {
    const at::Tensor& from = contributions_[i].operation.from;
    copy_row(is_gather ? from : piece_of(from, i, contributions_.size()),
             piece_of(operation.to, i, contributions_.size()));
  }
}

StreamMark SharedOperation::run_part(std::size_t part) {
  const CommOperation& operation = contributions_[part].operation;
  const at::Device device = device_of(part);
  for (const Contribution& contribution : contributions_) contribution.ready_mark.await(device);
  if (stage_ == 1)
    for (const StreamMark& mark : marks_[0]) mark.await(device);
  switch (operation.kind) {
    case CommKind::connect:
    case CommKind::send:
      break;
    case CommKind::all_reduce:
      stage_ == 0 ? reduce_piece(part) : gather_pieces(part);
      break;
    case CommKind::reduce_scatter:
      reduce_piece(part);
      break;
    case CommKind::all_gather:
      gather_pieces(part);
      break;
    case CommKind::broadcast:
      copy_row(contributions_[static_cast<std::size_t>(operation.root)].operation.from, operation.to);
      break;
    case CommKind::receive:
      copy_row(contributions_[1 - part].operation.from, operation.to);
      break;
  }
  return StreamMark::of(device);
}

void SharedOperation::await_work(int member_index) const {
  const at::Device device = device_of(static_cast<std::size_t>(member_index));
  for (const auto& marks : marks_)
    for (const StreamMark& mark : marks) mark.await(device);
}

void SharedOperation::release(int member_index) {
  CommOperation& operation = contributions_[static_cast<std::size_t>(member_index)].operation;
  operation.from.reset(), operation.to.reset();
}

bool SharedOperation::is_passed() const {
  return std::all_of(marks_.begin(), marks_.end(), [](const auto& marks) {
    return std::all_of(marks.begin(), marks.end(), [](const StreamMark& mark) { return mark.is_passed(); });
  });
}

}  // namespace optimus
