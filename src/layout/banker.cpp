// Implements the greedy search of banker.h.
#include "layout/banker.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace optimus {
namespace {

// The bytes that each class may still allocate, not counting the reserve: max(start, end) minus its current
// bytes.
class Headroom {
 public:
  explicit Headroom(const MoveOrderProblem& problem)
      : headroom_(static_cast<std::size_t>(problem.num_classes)) {
    for (const MemoryDemandKind& kind : problem.kinds)
      for (const MemoryDemand& demand : kind.demands)
        at(demand) += (demand.allocated - demand.freed) * static_cast<std::int64_t>(kind.items.size());
    for (std::int64_t& headroom : headroom_) headroom = std::max<std::int64_t>(headroom, 0);
  }
  // The number of bytes by which a move with these demands exceeds the limit.
  std::int64_t excess(const std::vector<MemoryDemand>& demands) const {
    std::int64_t maximum = 0;
    for (const MemoryDemand& demand : demands) maximum = std::max(maximum, demand.allocated - at(demand));
    return maximum;
  }
  // The smallest free memory of the affected classes after the move.
  std::int64_t headroom_after(const std::vector<MemoryDemand>& demands) const {
    std::int64_t smallest = std::numeric_limits<std::int64_t>::max();
    for (const MemoryDemand& demand : demands)
      smallest = std::min(smallest, at(demand) - demand.allocated + demand.freed);
    return smallest;
  }
  void begin(const std::vector<MemoryDemand>& demands) {
    for (const MemoryDemand& demand : demands) at(demand) -= demand.allocated;
  }
  void end(const std::vector<MemoryDemand>& demands) {
    for (const MemoryDemand& demand : demands) at(demand) += demand.freed;
  }

 private:
  std::int64_t& at(const MemoryDemand& demand) {
    return headroom_[static_cast<std::size_t>(demand.rank_class)];
  }
  std::int64_t at(const MemoryDemand& demand) const {
    return headroom_[static_cast<std::size_t>(demand.rank_class)];
  }
  std::vector<std::int64_t> headroom_;
};

const std::vector<MemoryDemand>& demands_of(const MoveOrderProblem& problem, const std::vector<int>& kind_of,
                                            int item) {
  return problem.kinds[static_cast<std::size_t>(kind_of[static_cast<std::size_t>(item)])].demands;
}

bool only_frees(const std::vector<MemoryDemand>& demands) {
  return std::all_of(demands.begin(), demands.end(),
                     [](const MemoryDemand& demand) { return demand.allocated <= demand.freed; });
}

struct Queue {
  const MemoryDemandKind* kind;
  std::size_t next;
  bool only_frees;
  int item() const { return kind->items[next]; }
};

std::optional<std::vector<int>> find_forwards(const MoveOrderProblem& problem, std::int64_t reserve) {
  std::vector<Queue> queues;
  for (const MemoryDemandKind& kind : problem.kinds)
    if (!kind.items.empty()) queues.push_back({&kind, 0, only_frees(kind.demands)});
  Headroom headroom(problem);
  std::vector<int> order;
  while (!queues.empty()) {
    Queue* best_queue = nullptr;
    std::int64_t best_headroom = 0;
    for (Queue& queue : queues) {
      if (headroom.excess(queue.kind->demands) > reserve) continue;
      const std::int64_t after = queue.only_frees ? std::numeric_limits<std::int64_t>::max()
                                                  : headroom.headroom_after(queue.kind->demands);
      if (best_queue == nullptr || after > best_headroom ||
          (after == best_headroom && queue.item() < best_queue->item()))
        best_queue = &queue, best_headroom = after;
    }
    if (best_queue == nullptr) return std::nullopt;
    headroom.begin(best_queue->kind->demands), headroom.end(best_queue->kind->demands);
    order.push_back(best_queue->item());
    if (++best_queue->next == best_queue->kind->items.size())
      queues.erase(queues.begin() + (best_queue - queues.data()));
  }
  return order;
}

// The same problem with time reversed. Item indices are negated, so that lower ones still come first in the
// final order.
MoveOrderProblem reversed(MoveOrderProblem problem) {
  for (MemoryDemandKind& kind : problem.kinds) {
    for (MemoryDemand& demand : kind.demands) std::swap(demand.allocated, demand.freed);
    std::reverse(kind.items.begin(), kind.items.end());
    for (int& item : kind.items) item = -item;
  }
  return problem;
}

}  // namespace

std::int64_t excess_of(const MoveOrderProblem& problem, const std::vector<int>& kind_of,
                       const std::vector<int>& order) {
  Headroom headroom(problem);
  std::int64_t maximum = 0;
  for (const int item : order) {
    const auto& demands = demands_of(problem, kind_of, item);
    maximum = std::max(maximum, headroom.excess(demands));
    headroom.begin(demands), headroom.end(demands);
  }
  return maximum;
}

std::optional<std::vector<int>> find_order(const MoveOrderProblem& problem, std::int64_t reserve) {
  if (auto order = find_forwards(problem, reserve)) return order;
  auto order = find_forwards(reversed(problem), reserve);
  if (!order) return std::nullopt;
  std::reverse(order->begin(), order->end());
  for (int& item : *order) item = -item;
  return order;
}

MergedOrder merge_adjacent(const MoveOrderProblem& problem, const std::vector<int>& kind_of,
                           const std::vector<int>& order, std::int64_t reserve,
                           const std::function<bool(int before, int item)>& may_join) {
  MergedOrder result;
  Headroom headroom(problem);
  for (const int item : order) {
    const auto& demands = demands_of(problem, kind_of, item);
    const bool joins = !result.groups.empty() && may_join(result.groups.back().back(), item) &&
                       headroom.excess(demands) <= reserve;
    if (!joins) {
      if (!result.groups.empty())
        for (const int finished_item : result.groups.back())
          headroom.end(demands_of(problem, kind_of, finished_item));
      result.groups.emplace_back();
    }
    result.excess = std::max(result.excess, headroom.excess(demands));
    headroom.begin(demands);
    result.groups.back().push_back(item);
  }
  return result;
}

}  // namespace optimus
