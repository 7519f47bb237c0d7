// The checks of verify.h: first one rank alone, then the plan's own records, then all ranks together.
#include "layout/verify.h"

#include <algorithm>
#include <functional>
#include <unordered_set>

#include "base/text.h"
#include "layout/cover.h"

namespace optimus {
namespace {

using Boxes = std::vector<Box>;

bool has(const Boxes& boxes, const Box& box) {
  return std::find(boxes.begin(), boxes.end(), box) != boxes.end();
}
bool contain(const Boxes& boxes, const Box& box) {
  return std::any_of(boxes.begin(), boxes.end(), [&](const Box& each) { return each.contains(box); });
}
bool meet(const Boxes& boxes, const Box& box) {
  return std::any_of(boxes.begin(), boxes.end(),
                     [&](const Box& each) { return intersect(each, box).has_value(); });
}

// What a rank has and does with one tensor.
struct TensorView {
  Boxes old_boxes, new_boxes;
  Boxes sent, received, copied;
  int wave = -1;
};

// One rank with its layouts and its share.
class RankCheck {
 public:
  RankCheck(const Layout& layout, const RankShare& share, const DiffOptions& options)
      : tensors_(layout.tensors), share_(share), reserve_(options.reserve), views_(tensors_.size()) {}

  void hold(const std::vector<HeldBox>& old_boxes, const std::vector<HeldBox>& new_boxes) {
    for (const HeldBox& held : old_boxes) view(held.tensor).old_boxes.push_back(held.box);
    for (const HeldBox& held : new_boxes) view(held.tensor).new_boxes.push_back(held.box);
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
        if (t < 0 || t >= static_cast<int>(views_.size())) return failure("wave {} names tensor {}", w, t);
        if (view(t).wave >= 0)
          return failure("tensor {} moves in two waves, {} and {}", name(t), view(t).wave, w);
        view(t).wave = w;
      }
      for (const HeldBox& copy : wave.copies)
        if (auto outcome = take(w, copy.tensor, copy.box, &TensorView::copied); !outcome) return outcome;
      for (const RankShare::Operation& operation : wave.operations) {
        const auto list = operation.is_send ? &TensorView::sent : &TensorView::received;
        if (auto outcome = take(w, operation.tensor, operation.box, list); !outcome) return outcome;
        if (operation.peer == share_.rank)
          return failure("rank {} sends {} to itself", rank(), name(operation.tensor));
      }
    }
    return {};
  }

  Outcome<void> take(int wave, int tensor, const Box& box, Boxes TensorView::*list) {
    if (tensor < 0 || tensor >= static_cast<int>(views_.size()) || view(tensor).wave != wave)
      return failure("rank {} moves tensor {} in wave {}, which does not list it", rank(), tensor, wave);
    const Box whole(tensors_[static_cast<std::size_t>(tensor)].shape);
    if (box.num_dims != whole.num_dims || box.is_empty() || !whole.contains(box))
      return failure("{} is no box of tensor {}", text(box), name(tensor));
    (view(tensor).*list).push_back(box);
    return {};
  }

  Outcome<void> check_tensor(int t, const TensorView& view) const {
    for (const Box& box : view.sent)
      if (!contain(view.old_boxes, box))
        return failure("rank {} sends {} of {}, which it does not hold", rank(), text(box), name(t));
    for (const Box& box : view.copied)
      if (!contain(view.old_boxes, box))
        return failure("rank {} copies {} of {}, which it does not hold", rank(), text(box), name(t));
    for (const Box& box : view.received)
      if (meet(view.old_boxes, box))
        return failure("rank {} is sent {} of {}, of which it holds a part", rank(), text(box), name(t));
    Boxes wanted, pieces = view.received;
    for (const Box& box : view.new_boxes)
      if (!has(view.old_boxes, box)) wanted.push_back(box);
    pieces.insert(pieces.end(), view.copied.begin(), view.copied.end());
    const bool frees = std::any_of(view.old_boxes.begin(), view.old_boxes.end(),
                                   [&](const Box& box) { return !has(view.new_boxes, box); });
    if (view.wave < 0 && (frees || !wanted.empty()))
      return failure("tensor {} changes on rank {}, but is in no wave", name(t), rank());
    if (wanted.empty() && pieces.empty()) return {};
    if (const auto mistake = find_cover_mistake(wanted, pieces))
      return failure("rank {} gets {} of {} {} times{}", rank(), text(mistake->box), name(t), mistake->times,
                     mistake->times == 1 ? ", and does not need it" : "");
    return {};
  }

  Bytes size_of(int tensor, const Boxes& boxes, const Boxes& except = {}) const {
    Bytes sum;
    for (const Box& box : boxes)
      if (!has(except, box))
        sum += Bytes(box.num_elements() * tensors_[static_cast<std::size_t>(tensor)].bytes_per_element);
    return sum;
  }

  Outcome<void> check_memory() {
    if (!reserve_) return {};
    Bytes held, old_size, new_size;
    for (int t = 0; t < static_cast<int>(views_.size()); ++t)
      old_size += size_of(t, view(t).old_boxes), new_size += size_of(t, view(t).new_boxes);
    const Bytes bound = std::max(old_size, new_size) + *reserve_;
    held = old_size;
    for (std::size_t w = 0; w < share_.waves.size(); ++w) {
      for (const int t : share_.waves[w].tensors) held += size_of(t, view(t).new_boxes, view(t).old_boxes);
      if (held > bound)
        return failure("rank {} holds {} in wave {}, {} more than its bound", rank(), text(held), w,
                       text(held - bound));
      for (const int t : share_.waves[w].tensors) held -= size_of(t, view(t).old_boxes, view(t).new_boxes);
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

// The records of a plan, before anything is looked up by them.
Outcome<void> check_records(const TransferPlan& plan, int num_ranks) {
  const auto is_rank = [&](Rank rank) { return rank.value >= 0 && rank.value < num_ranks; };
  const auto is_box = [&](int box) { return box >= 0 && box < static_cast<int>(plan.boxes.size()); };
  std::size_t transfers = 0, copies = 0;
  for (const Wave& wave : plan.waves) {
    if (wave.transfers_begin != transfers || wave.transfers_end < transfers || wave.copies_begin != copies ||
        wave.copies_end < copies)
      return failure("the waves of the plan do not follow one another");
    transfers = wave.transfers_end, copies = wave.copies_end;
  }
  if (transfers != plan.transfers.size() || copies != plan.copies.size())
    return failure("the waves of the plan leave transfers or copies out");
  for (const Transfer& transfer : plan.transfers)
    if (!is_rank(transfer.sender) || !is_rank(transfer.receiver) || !is_box(transfer.box))
      return failure("a transfer from rank {} to rank {} of box {} names what is not there",
                     transfer.sender.value, transfer.receiver.value, transfer.box);
  for (const LocalCopy& copy : plan.copies)
    if (!is_rank(copy.rank) || !is_box(copy.box))
      return failure("a copy on rank {} of box {} names what is not there", copy.rank.value, copy.box);
  return {};
}

// The numbers of the records that concern each rank, in their order.
class ByRank {
 public:
  ByRank(int num_ranks, std::size_t num_records,
         const std::function<void(std::size_t, std::vector<Rank>&)>& ranks_of)
      : first_(static_cast<std::size_t>(num_ranks) + 1) {
    std::vector<Rank> ranks;
    const auto visit = [&](const auto& use) {
      for (std::size_t i = 0; i < num_records; ++i) {
        ranks.clear();
        ranks_of(i, ranks);
        for (const Rank rank : ranks) use(static_cast<std::size_t>(rank.value), i);
      }
    };
    visit([&](std::size_t rank, std::size_t) { ++first_[rank + 1]; });
    for (std::size_t r = 0; r + 1 < first_.size(); ++r) first_[r + 1] += first_[r];
    std::vector<std::size_t> next(first_);
    records_.resize(first_.back());
    visit([&](std::size_t rank, std::size_t i) { records_[next[rank]++] = static_cast<std::uint32_t>(i); });
  }
  std::span<const std::uint32_t> of(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return std::span(records_).subspan(first_[r], first_[r + 1] - first_[r]);
  }

 private:
  std::vector<std::size_t> first_;
  std::vector<std::uint32_t> records_;
};

class PlanShares {
 public:
  PlanShares(const TransferPlan& plan, int num_ranks)
      : plan_(plan),
        transfers_(num_ranks, plan.transfers.size(),
                   [&](std::size_t i, std::vector<Rank>& ranks) {
                     ranks.push_back(plan.transfers[i].sender);
                     if (plan.transfers[i].receiver != ranks[0]) ranks.push_back(plan.transfers[i].receiver);
                   }),
        copies_(num_ranks, plan.copies.size(),
                [&](std::size_t i, std::vector<Rank>& ranks) { ranks.push_back(plan.copies[i].rank); }) {}

  RankShare share(int rank) const {
    RankShare share{Rank{rank}, {}};
    const auto transfers = transfers_.of(rank), copies = copies_.of(rank);
    auto transfer = transfers.begin();
    auto copy = copies.begin();
    for (const Wave& wave : plan_.waves) {
      RankShare::Wave& mine = share.waves.emplace_back(RankShare::Wave{wave.tensors, {}, {}});
      for (; copy != copies.end() && *copy < wave.copies_end; ++copy)
        mine.copies.push_back({plan_.copies[*copy].tensor, box(plan_.copies[*copy].box)});
      for (; transfer != transfers.end() && *transfer < wave.transfers_end; ++transfer) {
        const Transfer& at = plan_.transfers[*transfer];
        const bool is_send = at.sender.value == rank;
        mine.operations.push_back({is_send, at.tensor, is_send ? at.receiver : at.sender, box(at.box)});
      }
    }
    return share;
  }

  std::vector<PostedOperation> program(int rank) const {
    std::vector<PostedOperation> program;
    int wave = 0;
    for (const std::uint32_t i : transfers_.of(rank)) {
      while (i >= plan_.waves[static_cast<std::size_t>(wave)].transfers_end) ++wave;
      const bool is_send = plan_.transfers[i].sender.value == rank;
      program.push_back(
          {wave, is_send ? plan_.transfers[i].receiver.value : plan_.transfers[i].sender.value, is_send, i});
    }
    return program;
  }

 private:
  const Box& box(int index) const { return plan_.boxes[static_cast<std::size_t>(index)]; }
  const TransferPlan& plan_;
  ByRank transfers_, copies_;
};

std::vector<PostedOperation> program_of(const RankShare& share) {
  std::vector<PostedOperation> program;
  for (int w = 0; w < static_cast<int>(share.waves.size()); ++w)
    for (const RankShare::Operation& operation : share.waves[static_cast<std::size_t>(w)].operations) {
      std::uint64_t what = static_cast<std::uint64_t>(operation.tensor);
      for (int d = 0; d < operation.box.num_dims; ++d)
        for (const std::int64_t edge : {operation.box[d].begin, operation.box[d].end})
          what = (what ^ static_cast<std::uint64_t>(edge)) * 0x9e3779b97f4a7c15ULL + (what >> 32);
      program.push_back({w, operation.peer.value, operation.is_send, what});
    }
  return program;
}

int check_and_count_ranks(const Layout& from, const Layout& to) {
  validate_pair(from, to);
  return std::max(num_ranks(from), num_ranks(to));
}

}  // namespace

Outcome<void> verify_share(const Layout& from, const RankIndex& from_index, const Layout& to,
                           const RankIndex& to_index, const RankShare& share, const DiffOptions& options) {
  RankCheck check(to, share, options);
  const bool has_lost_all = is_dead(options, share.rank);
  check.hold(has_lost_all ? std::vector<HeldBox>{} : boxes_of(from, from_index, share.rank),
             boxes_of(to, to_index, share.rank));
  return check.run();
}

Outcome<void> verify(const Layout& from, const Layout& to, const TransferPlan& plan,
                     const DiffOptions& options) {
  const int count = check_and_count_ranks(from, to);
  if (auto outcome = check_records(plan, count); !outcome) return outcome;
  const RankIndex from_index(from), to_index(to);
  const PlanShares shares(plan, count);
  std::vector<std::vector<PostedOperation>> programs;
  for (int rank = 0; rank < count; ++rank) {
    auto outcome = verify_share(from, from_index, to, to_index, shares.share(rank), options);
    if (!outcome) return outcome;
    programs.push_back(shares.program(rank));
  }
  return check_no_deadlock(programs);
}

Outcome<void> verify(const Layout& from, const Layout& to, std::span<const RankShare> shares,
                     const DiffOptions& options) {
  const int count = check_and_count_ranks(from, to);
  if (static_cast<int>(shares.size()) != count)
    return failure("there are shares of {} ranks, the layouts name {}", shares.size(), count);
  const RankIndex from_index(from), to_index(to);
  std::vector<std::vector<PostedOperation>> programs;
  for (int rank = 0; rank < count; ++rank) {
    const RankShare& share = shares[static_cast<std::size_t>(rank)];
    if (share.rank.value != rank) return failure("share {} is that of rank {}", rank, share.rank.value);
    auto outcome = verify_share(from, from_index, to, to_index, share, options);
    if (!outcome) return outcome;
    programs.push_back(program_of(share));
  }
  return check_no_deadlock(programs);
}

}  // namespace optimus
