// The order in which tensors move, so that no rank exceeds its memory.
//
// Layer by layer is tried first. Where memory does not allow it, tensors are picked one at a time, as a
// banker lends: whatever fits and leaves no rank with less than before goes first; among the others, those
// that keep the most old memory busy (on one rank with only growing tensors, or only shrinking ones, that is
// the best order there is). When nothing fits, the tensor that exceeds the least is taken and the excess
// noted: the reserve that would have done.
#include <algorithm>
#include <limits>
#include <numeric>

#include "layout/demand.h"

namespace optimus {
namespace {

// Free memory of every class of ranks, the reserve not counted: max(old, new) less what is held.
class Memory {
 public:
  Memory(const Change& change, const Demands& demands)
      : room_(static_cast<std::size_t>(demands.num_classes)) {
    for (std::size_t k = 0; k < demands.of_kind.size(); ++k)
      for (const Demand& demand : demands.of_kind[k])
        at(demand) +=
            (demand.allocated - demand.freed) * static_cast<std::int64_t>(change.kinds[k].tensors.size());
    for (std::int64_t& room : room_) room = std::max<std::int64_t>(room, 0);  // new - old, when that is more
  }
  // How far above max(old, new) the classes get while these move.
  std::int64_t excess(const std::vector<Demand>& demands) const {
    std::int64_t most = 0;
    for (const Demand& demand : demands) most = std::max(most, demand.allocated - at(demand));
    return most;
  }
  void allocate(const std::vector<Demand>& demands) {
    for (const Demand& demand : demands) at(demand) -= demand.allocated;
  }
  void release(const std::vector<Demand>& demands) {
    for (const Demand& demand : demands) at(demand) += demand.freed;
  }

 private:
  std::int64_t& at(const Demand& demand) { return room_[static_cast<std::size_t>(demand.rank_class)]; }
  std::int64_t at(const Demand& demand) const { return room_[static_cast<std::size_t>(demand.rank_class)]; }
  std::vector<std::int64_t> room_;
};

struct Order {
  std::vector<int> tensors;
  std::int64_t reserve = 0;  // what it needs, one tensor a wave
};

const std::vector<Demand>& demands_of(const Change& change, const Demands& demands, int tensor) {
  return demands.of_kind[static_cast<std::size_t>(change.kind_of[static_cast<std::size_t>(tensor)])];
}

Order block_order(const Change& change, const Demands& demands) {
  Order order;
  for (int t = 0; t < static_cast<int>(change.to.tensors.size()); ++t)
    if (!demands_of(change, demands, t).empty()) order.tensors.push_back(t);
  const auto block = [&](int tensor) { return change.to.tensors[static_cast<std::size_t>(tensor)].block; };
  std::stable_sort(order.tensors.begin(), order.tensors.end(),
                   [&](int a, int b) { return block(a) < block(b); });
  Memory memory(change, demands);
  for (const int tensor : order.tensors) {
    const auto& needs = demands_of(change, demands, tensor);
    order.reserve = std::max(order.reserve, memory.excess(needs));
    memory.allocate(needs), memory.release(needs);
  }
  return order;
}

// Whether moving it leaves no rank with less; and the most old memory it keeps busy on any rank.
struct Character {
  bool only_frees = true;
  std::int64_t busiest = 0;
};
Character character_of(const std::vector<Demand>& demands) {
  Character character;
  for (const Demand& demand : demands) {
    character.only_frees = character.only_frees && demand.allocated <= demand.freed;
    character.busiest = std::max(character.busiest, demand.freed);
  }
  return character;
}

// Does not look at the reserve that the caller has, so that the one it names will do.
Order banker_order(const Change& change, const Demands& demands) {
  struct Queue {
    std::size_t kind;
    std::size_t next = 0;  // of the kind's tensors
    Character character;
  };
  std::vector<Queue> queues;
  for (std::size_t k = 0; k < change.kinds.size(); ++k)
    if (!demands.of_kind[k].empty()) queues.push_back({k, 0, character_of(demands.of_kind[k])});
  const auto tensor_of = [&](const Queue& queue) { return change.kinds[queue.kind].tensors[queue.next]; };
  const auto is_better = [&](const Queue& a, const Queue& b) {
    if (a.character.only_frees != b.character.only_frees) return a.character.only_frees;
    if (!a.character.only_frees && a.character.busiest != b.character.busiest)
      return a.character.busiest > b.character.busiest;
    const int ta = tensor_of(a), tb = tensor_of(b);
    return std::pair(change.to.tensors[static_cast<std::size_t>(ta)].block, ta) <
           std::pair(change.to.tensors[static_cast<std::size_t>(tb)].block, tb);
  };

  Order order;
  Memory memory(change, demands);
  while (!queues.empty()) {
    std::size_t best = 0;
    std::int64_t best_excess = std::numeric_limits<std::int64_t>::max();
    for (std::size_t q = 0; q < queues.size(); ++q) {
      const std::int64_t excess = std::max(memory.excess(demands.of_kind[queues[q].kind]), order.reserve);
      if (excess < best_excess || (excess == best_excess && is_better(queues[q], queues[best])))
        best = q, best_excess = excess;
    }
    Queue& chosen = queues[best];
    const auto& needs = demands.of_kind[chosen.kind];
    order.reserve = best_excess;
    memory.allocate(needs), memory.release(needs);
    order.tensors.push_back(tensor_of(chosen));
    if (++chosen.next == change.kinds[chosen.kind].tensors.size())
      queues.erase(queues.begin() + static_cast<std::ptrdiff_t>(best));
  }
  return order;
}

// Tensors of one block that stand together and fit together move together.
WaveOrder merge(const Change& change, const Demands& demands, const Order& order, std::int64_t reserve) {
  WaveOrder result{{}, Bytes(0), demands.lower_bound, demands.naive};
  Memory memory(change, demands);
  const auto release_last = [&] {
    if (result.waves.empty()) return;
    for (const int tensor : result.waves.back()) memory.release(demands_of(change, demands, tensor));
  };
  int open_block = -1;
  for (const int tensor : order.tensors) {
    const auto& needs = demands_of(change, demands, tensor);
    const int block = change.to.tensors[static_cast<std::size_t>(tensor)].block;
    if (result.waves.empty() || block != open_block || memory.excess(needs) > reserve) {
      release_last();
      result.waves.emplace_back();
    }
    result.reserve = std::max(result.reserve, Bytes(memory.excess(needs)));
    memory.allocate(needs);
    result.waves.back().push_back(tensor);
    open_block = block;
  }
  return result;
}

}  // namespace

DiffOutcome<WaveOrder> order_waves(const Change& change) {
  const Demands demands = demands_of(change);
  const std::int64_t reserve =
      change.options.reserve ? change.options.reserve->value : std::numeric_limits<std::int64_t>::max();
  Order order = block_order(change, demands);
  if (order.reserve > reserve) {
    Order other = banker_order(change, demands);
    if (other.reserve < order.reserve) order = std::move(other);
  }
  if (order.reserve > reserve) {
    DiffFailure why{
        {fmt::format("a reserve of {} is too small to move from one layout to the other, {} would do",
                     text(Bytes(reserve)), text(Bytes(order.reserve)))},
        {},
        Bytes(order.reserve)};
    return tl::unexpected(std::move(why));
  }
  return merge(change, demands, order, reserve);
}

}  // namespace optimus
