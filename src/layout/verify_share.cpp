// Implements the checks of verify that concern a single rank.
#include <algorithm>

#include "base/text.h"
#include "layout/cover.h"
#include "layout/verify.h"

namespace optimus {
namespace {

using Boxes = std::vector<Box>;

bool contains_box(const Boxes& boxes, const Box& box) {
  return std::find(boxes.begin(), boxes.end(), box) != boxes.end();
}
bool contains_any(const Boxes& boxes, const Box& box) {
  return std::any_of(boxes.begin(), boxes.end(), [&](const Box& each) { return each.contains(box); });
}
bool intersects_any(const Boxes& boxes, const Box& box) {
  return std::any_of(boxes.begin(), boxes.end(),
                     [&](const Box& each) { return intersect(each, box).has_value(); });
}

// The boxes of one tensor that a rank has, needs, sends, receives and copies.
struct TensorView {
  Boxes old_boxes, new_boxes;
  Boxes sent, received, copied;
  int wave = -1;
};

// Checks one rank, given its boxes and its share.
class RankCheck {
 public:
  RankCheck(const Layout& layout, const RankShare& share, const DiffOptions& options)
      : tensors_(layout.tensors), share_(share), reserve_(options.reserve), views_(tensors_.size()) {}

  void record_owned_boxes(const std::vector<TensorBox>& old_boxes, const std::vector<TensorBox>& new_boxes) {
    for (const TensorBox& tensor_box : old_boxes) view(tensor_box.tensor).old_boxes.push_back(tensor_box.box);
    for (const TensorBox& tensor_box : new_boxes) view(tensor_box.tensor).new_boxes.push_back(tensor_box.box);
  }

  Outcome<void> run() {
    if (auto outcome = read_share(); !outcome) return outcome;
    for (int t = 0; t < static_cast<int>(views_.size()); ++t)
      if (auto outcome = check_tensor(t, view(t)); !outcome) return outcome;
    return check_memory();
  }

 private:
  TensorView& view(int tensor) { return views_[static_cast<std::size_t>(tensor)]; }
  std::string name(int tensor) const { return in_quotes(tensors_[static_cast<std::size_t>(tensor)].name); }
  int rank() const { return share_.rank.value; }

  Outcome<void> read_share() {
    for (int w = 0; w < static_cast<int>(share_.waves.size()); ++w) {
      const RankShare::Wave& wave = share_.waves[static_cast<std::size_t>(w)];
      for (const int t : wave.tensors) {
        if (t < 0 || t >= static_cast<int>(views_.size()))
          return failure("wave {} refers to tensor {}, which does not exist", w, t);
        if (view(t).wave >= 0)
          return failure("tensor {} moves in two waves, {} and {}", name(t), view(t).wave, w);
        view(t).wave = w;
      }
      for (const TensorBox& copy : wave.copies)
        if (auto outcome = record_box(w, copy.tensor, copy.box, &TensorView::copied); !outcome)
          return outcome;
      for (const RankShare::Operation& operation : wave.operations) {
        const auto list = operation.is_send ? &TensorView::sent : &TensorView::received;
        if (auto outcome = record_box(w, operation.tensor, operation.box, list); !outcome) return outcome;
        if (operation.peer == share_.rank)
          return failure("rank {} sends {} to itself", rank(), name(operation.tensor));
      }
    }
    return {};
  }

  Outcome<void> record_box(int wave, int tensor, const Box& box, Boxes TensorView::*list) {
    if (tensor < 0 || tensor >= static_cast<int>(views_.size()) || view(tensor).wave != wave)
      return failure("rank {} moves tensor {} in wave {}, which does not list it", rank(), tensor, wave);
    const Box full_box(tensors_[static_cast<std::size_t>(tensor)].shape);
    if (box.num_dims != full_box.num_dims || box.is_empty() || !full_box.contains(box))
      return failure("{} is not a valid box of tensor {}", text(box), name(tensor));
    (view(tensor).*list).push_back(box);
    return {};
  }

  Outcome<void> check_tensor(int t, const TensorView& view) const {
    for (const Box& box : view.sent)
      if (!contains_any(view.old_boxes, box))
        return failure("rank {} sends {} of {}, which it does not hold", rank(), text(box), name(t));
    for (const Box& box : view.copied)
      if (!contains_any(view.old_boxes, box))
        return failure("rank {} copies {} of {}, which it does not hold", rank(), text(box), name(t));
    for (const Box& box : view.received)
      if (intersects_any(view.old_boxes, box))
        return failure("rank {} receives {} of {}, although it already holds a part of it", rank(), text(box),
                       name(t));
    Boxes required_boxes, pieces = view.received;
    for (const Box& box : view.new_boxes)
      if (!contains_box(view.old_boxes, box)) required_boxes.push_back(box);
    pieces.insert(pieces.end(), view.copied.begin(), view.copied.end());
    const bool is_freeing = std::any_of(view.old_boxes.begin(), view.old_boxes.end(),
                                        [&](const Box& box) { return !contains_box(view.new_boxes, box); });
    if (view.wave < 0 && (is_freeing || !required_boxes.empty()))
      return failure("tensor {} changes on rank {}, but no wave includes it", name(t), rank());
    if (required_boxes.empty() && pieces.empty()) return {};
    if (const auto mistake = find_cover_mistake(required_boxes, pieces))
      return failure("rank {} receives {} of {} {} times{}", rank(), text(mistake->box), name(t),
                     mistake->num_pieces, mistake->num_pieces == 1 ? ", but does not need it" : "");
    return {};
  }

  Bytes size_of(int tensor, const Boxes& boxes, const Boxes& except = {}) const {
    Bytes sum;
    for (const Box& box : boxes)
      if (!contains_box(except, box))
        sum += Bytes(box.num_elements() * tensors_[static_cast<std::size_t>(tensor)].bytes_per_element);
    return sum;
  }

  Outcome<void> check_memory() {
    if (!reserve_) return {};
    Bytes owned_bytes, old_size, new_size;
    for (int t = 0; t < static_cast<int>(views_.size()); ++t)
      old_size += size_of(t, view(t).old_boxes), new_size += size_of(t, view(t).new_boxes);
    const Bytes bound = std::max(old_size, new_size) + *reserve_;
    owned_bytes = old_size;
    for (std::size_t w = 0; w < share_.waves.size(); ++w) {
      for (const int t : share_.waves[w].tensors)
        owned_bytes += size_of(t, view(t).new_boxes, view(t).old_boxes);
      if (owned_bytes > bound)
        return failure("rank {} holds {} in wave {}, {} more than the limit", rank(), text(owned_bytes), w,
                       text(owned_bytes - bound));
      for (const int t : share_.waves[w].tensors)
        owned_bytes -= size_of(t, view(t).old_boxes, view(t).new_boxes);
    }
    return {};
  }

  const std::vector<TensorInfo>& tensors_;
  const RankShare& share_;
  std::optional<Bytes> reserve_;
  std::vector<TensorView> views_;
};

bool is_dead(const DiffOptions& options, Rank rank) {
  return std::find(options.dead.begin(), options.dead.end(), rank) != options.dead.end();
}

}  // namespace

Outcome<void> verify_share(const Layout& from, const RankIndex& from_index, const Layout& to,
                           const RankIndex& to_index, const RankShare& share, const DiffOptions& options) {
  RankCheck check(to, share, options);
  const bool is_lost_rank = is_dead(options, share.rank);
  check.record_owned_boxes(is_lost_rank ? std::vector<TensorBox>{} : boxes_of(from, from_index, share.rank),
                           boxes_of(to, to_index, share.rank));
  return check.run();
}

}  // namespace optimus
