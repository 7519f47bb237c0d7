// Implements the greedy search of banker.h.
#include "layout/banker.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace optimus {
namespace {

// The bytes that each class may still allocate, not counting the reserve: max(start, end) minus its current
// bytes.
class Room {
 public:
  explicit Room(const BankerProblem& problem) : room_(static_cast<std::size_t>(problem.num_classes)) {
    for (const MemoryDemandKind& kind : problem.kinds)
      for (const MemoryDemand& demand : kind.demands)
        at(demand) += (demand.allocated - demand.freed) * static_cast<std::int64_t>(kind.things.size());
    for (std::int64_t& room : room_) room = std::max<std::int64_t>(room, 0);
  }
  // The bytes above the limit while the thing moves.
  std::int64_t excess(const std::vector<MemoryDemand>& demands) const {
    std::int64_t most = 0;
    for (const MemoryDemand& demand : demands) most = std::max(most, demand.allocated - at(demand));
    return most;
  }
  // The smallest free memory of the affected classes after the move.
  std::int64_t room_after(const std::vector<MemoryDemand>& demands) const {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const MemoryDemand& demand : demands)
      least = std::min(least, at(demand) - demand.allocated + demand.freed);
    return least;
  }
  void begin(const std::vector<MemoryDemand>& demands) {
    for (const MemoryDemand& demand : demands) at(demand) -= demand.allocated;
  }
  void end(const std::vector<MemoryDemand>& demands) {
    for (const MemoryDemand& demand : demands) at(demand) += demand.freed;
  }

 private:
  std::int64_t& at(const MemoryDemand& demand) { return room_[static_cast<std::size_t>(demand.rank_class)]; }
  std::int64_t at(const MemoryDemand& demand) const {
    return room_[static_cast<std::size_t>(demand.rank_class)];
  }
  std::vector<std::int64_t> room_;
};

const std::vector<MemoryDemand>& demands_of(const BankerProblem& problem, const std::vector<int>& kind_of,
                                            int thing) {
  return problem.kinds[static_cast<std::size_t>(kind_of[static_cast<std::size_t>(thing)])].demands;
}

bool only_frees(const std::vector<MemoryDemand>& demands) {
  return std::all_of(demands.begin(), demands.end(),
                     [](const MemoryDemand& demand) { return demand.allocated <= demand.freed; });
}

struct Queue {
  const MemoryDemandKind* kind;
  std::size_t next;
  bool only_frees;
  int thing() const { return kind->things[next]; }
};

std::optional<std::vector<int>> find_forwards(const BankerProblem& problem, std::int64_t reserve) {
  std::vector<Queue> queues;
  for (const MemoryDemandKind& kind : problem.kinds)
    if (!kind.things.empty()) queues.push_back({&kind, 0, only_frees(kind.demands)});
  Room room(problem);
  std::vector<int> order;
  while (!queues.empty()) {
    Queue* best = nullptr;
    std::int64_t best_room = 0;
    for (Queue& queue : queues) {
      if (room.excess(queue.kind->demands) > reserve) continue;
      const std::int64_t after =
          queue.only_frees ? std::numeric_limits<std::int64_t>::max() : room.room_after(queue.kind->demands);
      if (best == nullptr || after > best_room || (after == best_room && queue.thing() < best->thing()))
        best = &queue, best_room = after;
    }
    if (best == nullptr) return std::nullopt;
    room.begin(best->kind->demands), room.end(best->kind->demands);
    order.push_back(best->thing());
    if (++best->next == best->kind->things.size()) queues.erase(queues.begin() + (best - queues.data()));
  }
  return order;
}

// The same problem with reversed time. The numbers are negated, so that lower ones still come first.
BankerProblem reversed(BankerProblem problem) {
  for (MemoryDemandKind& kind : problem.kinds) {
    for (MemoryDemand& demand : kind.demands) std::swap(demand.allocated, demand.freed);
    std::reverse(kind.things.begin(), kind.things.end());
    for (int& thing : kind.things) thing = -thing;
  }
  return problem;
}

}  // namespace

std::int64_t excess_of(const BankerProblem& problem, const std::vector<int>& kind_of,
                       const std::vector<int>& order) {
  Room room(problem);
  std::int64_t most = 0;
  for (const int thing : order) {
    const auto& demands = demands_of(problem, kind_of, thing);
    most = std::max(most, room.excess(demands));
    room.begin(demands), room.end(demands);
  }
  return most;
}

std::optional<std::vector<int>> find_order(const BankerProblem& problem, std::int64_t reserve) {
  if (auto order = find_forwards(problem, reserve)) return order;
  auto order = find_forwards(reversed(problem), reserve);
  if (!order) return std::nullopt;
  std::reverse(order->begin(), order->end());
  for (int& thing : *order) thing = -thing;
  return order;
}

MergedOrder merge_neighbours(const BankerProblem& problem, const std::vector<int>& kind_of,
                             const std::vector<int>& order, std::int64_t reserve,
                             const std::function<bool(int before, int thing)>& may_join) {
  MergedOrder merged;
  Room room(problem);
  for (const int thing : order) {
    const auto& demands = demands_of(problem, kind_of, thing);
    const bool joins = !merged.groups.empty() && may_join(merged.groups.back().back(), thing) &&
                       room.excess(demands) <= reserve;
    if (!joins) {
      if (!merged.groups.empty())
        for (const int done : merged.groups.back()) room.end(demands_of(problem, kind_of, done));
      merged.groups.emplace_back();
    }
    merged.excess = std::max(merged.excess, room.excess(demands));
    room.begin(demands);
    merged.groups.back().push_back(thing);
  }
  return merged;
}

}  // namespace optimus
