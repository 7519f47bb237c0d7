// Implements meeting.h.
#include "comm/meeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/sum.h"

namespace optimus {
namespace {

bool is_message(CommKind kind) { return kind == CommKind::send || kind == CommKind::receive; }

bool fit(const CommOperation& a, const CommOperation& b) {
  if (is_message(a.kind) && is_message(b.kind) && a.kind != b.kind)
    return a.bytes() == b.bytes() && (a.from.defined() ? a.from : a.to).scalar_type() ==
                                         (b.from.defined() ? b.from : b.to).scalar_type();
  if (a.kind != b.kind || a.bytes() != b.bytes() || a.sum != b.sum || a.root != b.root) return false;
  return !a.from.defined() || a.from.scalar_type() == b.from.scalar_type();
}

// Piece of a row that is cut as evenly as possible.
at::Tensor piece_of(const at::Tensor& row, std::size_t piece, std::size_t num_pieces) {
  const auto edge = [&](std::size_t i) {
    return row.numel() * static_cast<std::int64_t>(i) / static_cast<std::int64_t>(num_pieces);
  };
  return row.narrow(0, edge(piece), edge(piece + 1) - edge(piece));
}

}  // namespace

Meeting::Meeting(std::vector<int> members) : members_(std::move(members)), sides_(members_.size()) {
  for (auto& marks : marks_) marks.resize(members_.size());
}

void Meeting::come(int place, CommOperation operation) {
  Side& side = sides_[static_cast<std::size_t>(place)];
  ensure(!side.has_come, "rank {} submits {} twice", members_[static_cast<std::size_t>(place)],
         operation.text());
  // All operations are compared with the first.
  if (const Side& other = sides_[first_]; num_come_ > 0 && !fit(other.operation, operation))
    break_off({fmt::format("rank {} started {} ({}) where rank {} started {} ({})",
                           members_[static_cast<std::size_t>(place)], operation.text(),
                           optimus::text(Bytes(operation.bytes())), members_[first_], other.operation.text(),
                           optimus::text(Bytes(other.operation.bytes()))),
               {}});
  if (num_come_ == 0) first_ = static_cast<std::size_t>(place);
  const at::Tensor& tensor = operation.from.defined() ? operation.from : operation.to;
  if (tensor.defined()) side.is_ready = StreamMark::of(tensor.device());
  if (operation.kind == CommKind::all_reduce) num_stages_ = 2;
  side.operation = std::move(operation);
  side.has_come = true;
  ++num_come_;
  changed.notify_all();
}

void Meeting::break_off(Breach breach) {
  if (!broken_ && !is_done()) broken_ = std::move(breach);
  changed.notify_all();
}

std::vector<int> Meeting::missing() const {
  std::vector<int> result;
  for (std::size_t i = 0; i < sides_.size(); ++i)
    if (!sides_[i].has_come) result.push_back(members_[i]);
  return result;
}

std::optional<std::size_t> Meeting::take_part() {
  if (broken_ || !is_complete() || is_done() || next_part_ == sides_.size()) return std::nullopt;
  ++num_running_;
  return next_part_++;
}

void Meeting::end_part(std::size_t part, StreamMark mark) {
  --num_running_;
  marks_[stage_][part] = std::move(mark);
  if (++num_ended_ == sides_.size()) ++stage_, next_part_ = 0, num_ended_ = 0;
  changed.notify_all();
}

at::Device Meeting::device_of(std::size_t part) const {
  const CommOperation& operation = sides_[part].operation;
  const at::Tensor& tensor = operation.to.defined() ? operation.to : operation.from;
  return tensor.defined() ? tensor.device() : at::Device(at::kCPU);
}

// Only this part touches piece i of any tensor.
void Meeting::reduce_piece(std::size_t piece) {
  std::vector<at::Tensor> pieces;
  for (const Side& side : sides_) pieces.push_back(piece_of(side.operation.from, piece, sides_.size()));
  const CommOperation& own = sides_[piece].operation;
  const at::Tensor& to = own.to;
  sum_in_order(pieces, own.kind == CommKind::reduce_scatter ? to : piece_of(to, piece, sides_.size()),
               own.sum);
}

void Meeting::gather_pieces(std::size_t into) {
  const CommOperation& own = sides_[into].operation;
  const bool is_gather = own.kind == CommKind::all_gather;
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    const at::Tensor& from = sides_[i].operation.from;
    copy_row(is_gather ? from : piece_of(from, i, sides_.size()), piece_of(own.to, i, sides_.size()));
  }
}

StreamMark Meeting::do_part(std::size_t part) {
  const CommOperation& own = sides_[part].operation;
  const at::Device device = device_of(part);
  for (const Side& side : sides_) side.is_ready.await(device);
  if (stage_ == 1)
    for (const StreamMark& mark : marks_[0]) mark.await(device);
  switch (own.kind) {
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
      copy_row(sides_[static_cast<std::size_t>(own.root)].operation.from, own.to);
      break;
    case CommKind::receive:
      copy_row(sides_[1 - part].operation.from, own.to);
      break;
  }
  return StreamMark::of(device);
}

void Meeting::await_work(int place) const {
  const at::Device device = device_of(static_cast<std::size_t>(place));
  for (const auto& marks : marks_)
    for (const StreamMark& mark : marks) mark.await(device);
}

void Meeting::release(int place) {
  CommOperation& own = sides_[static_cast<std::size_t>(place)].operation;
  own.from.reset(), own.to.reset();
}

bool Meeting::is_passed() const {
  return std::all_of(marks_.begin(), marks_.end(), [](const auto& marks) {
    return std::all_of(marks.begin(), marks.end(), [](const StreamMark& mark) { return mark.is_passed(); });
  });
}

}  // namespace optimus
