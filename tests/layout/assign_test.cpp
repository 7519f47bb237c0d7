// The choice of devices compared with all permutations, and the kept bytes compared with the bytes that diff
// moves.
#include "layout/assign.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "layout/diff.h"
#include "layout/transport.h"
#include "property.h"
#include "random_layout.h"

namespace optimus {
namespace {

// Exhaustive search: the maximum number of bytes that stay in place if `count` virtual ranks are assigned to
// distinct devices.
std::int64_t max_saved_microbatches(const Layout& from, const Layout& to, const std::vector<Rank>& devices,
                                    int count) {
  std::vector<Rank> order = devices;
  std::sort(order.begin(), order.end());
  std::int64_t most = 0;
  do {
    const TransferPlan plan = diff(from, with_devices(to, {order.begin(), order.begin() + count})).value();
    most = std::max(most, (plan.full_fetch_bytes - plan.moved).value);
  } while (std::next_permutation(order.begin(), order.end()));
  return most;
}

TEST(Assign, HeaderExample) {
  Layout from{{{"a", {4}, 1, 0}, {"b", {4}, 1, 1}},
              {{1, 1, 1, {Rank{0}}}, {1, 1, 1, {Rank{1}}}},
              {{{0, -1, {}}}, {{1, -1, {}}}}};
  Layout to = from;
  std::swap(to.placements[0], to.placements[1]);
  const Assignment assignment = assign_devices(from, to, first_ranks(2));
  EXPECT_EQ(assignment.device_of, (std::vector<Rank>{Rank{1}, Rank{0}}));
  EXPECT_EQ(assignment.bytes_in_place, Bytes(8));
  EXPECT_EQ(assignment.needed_bytes, Bytes(8));
}

TEST(Assign, SameLayoutMovesNothing) {
  const Layout layout{{{"w", {8, 6}, 1, 0}}, {{2, 2, 2, first_ranks(8)}}, {{{0, 1, split_evenly(6, 2)}}}};
  EXPECT_EQ(assign_devices(layout, layout, first_ranks(8)).device_of, first_ranks(8));
}

TEST(Assign, RejectsTooFewOrRepeatedDevices) {
  const Layout layout{{{"w", {8}, 1, 0}}, {{2, 1, 1, first_ranks(2)}}, {{{0, -1, {}}}}};
  EXPECT_THROW(assign_devices(layout, layout, {Rank{0}}), UserError);
  EXPECT_THROW(assign_devices(layout, layout, {Rank{0}, Rank{0}, Rank{1}}), UserError);
  EXPECT_THROW(assign_devices(layout, layout, {Rank{0}, Rank{-1}}), UserError);
  EXPECT_EQ(assign_devices(layout, layout, {Rank{9}, Rank{1}}).bytes_in_place,
            Bytes(8));  // device 9 is new and empty
}

TEST(AssignProperty, EqualsTheBestOfAllPermutations) {
  EXPECT_TRUE(holds("permutations", 60, [] {
    const auto tensors = random_tensors(3);
    const int num_devices = draw(1, 5);
    const Layout from = random_layout(tensors, first_ranks(num_devices));
    const Layout to = random_layout(tensors, first_ranks(draw(1, num_devices)));
    const Assignment assignment = assign_devices(from, to, shuffled(first_ranks(num_devices)));
    const int count = num_ranks(to);
    RC_ASSERT(static_cast<int>(assignment.device_of.size()) == count);
    RC_ASSERT(assignment.is_exact);
    RC_ASSERT(assignment.bytes_in_place == assignment.in_place_bound);
    RC_ASSERT(assignment.bytes_in_place.value ==
              max_saved_microbatches(from, to, first_ranks(num_devices), count));
    const TransferPlan plan = diff(from, with_devices(to, assignment.device_of)).value();
    RC_ASSERT(plan.moved == assignment.needed_bytes - assignment.bytes_in_place);
    RC_ASSERT(plan.full_fetch_bytes == assignment.needed_bytes);
  }));
}

TEST(AssignProperty, GreedyIsBetweenHalfOfTheBestAndTheBound) {
  EXPECT_TRUE(holds("greedy", 100, [] {
    const auto tensors = random_tensors(3);
    const Layout from = random_layout(tensors, first_ranks(draw(1, 9)));
    const Layout to = random_layout(tensors, first_ranks(draw(1, 9)));
    const Assignment exact = assign_devices(from, to, first_ranks(9));
    const Assignment greedy = assign_devices(from, to, first_ranks(9), {.max_work = 0});
    RC_ASSERT(greedy.bytes_in_place <= exact.bytes_in_place);
    RC_ASSERT(greedy.in_place_bound >= exact.bytes_in_place);
    RC_ASSERT(2 * greedy.bytes_in_place >= exact.bytes_in_place);
    RC_ASSERT(greedy.is_exact == (greedy.bytes_in_place == greedy.in_place_bound));
    const TransferPlan plan = diff(from, with_devices(to, greedy.device_of)).value();
    // unassigned ranks may by chance get a device with matching data
    RC_ASSERT(plan.moved <= greedy.needed_bytes - greedy.bytes_in_place);
  }));
}

// Exhaustive search over all flows.
std::int64_t best_weight(const TransportProblem& problem, std::size_t edge, std::vector<int>& demand,
                         std::vector<int>& supply) {
  if (edge == problem.edges.size()) return 0;
  const auto& [row, column, weight] = problem.edges[edge];
  int& wanted = demand[static_cast<std::size_t>(row)];
  int& left = supply[static_cast<std::size_t>(column)];
  std::int64_t best = 0;
  const int most = std::min(wanted, left);
  for (int amount = 0; amount <= most; ++amount) {
    wanted -= amount, left -= amount;
    best = std::max(best, amount * weight + best_weight(problem, edge + 1, demand, supply));
    wanted += amount, left += amount;
  }
  return best;
}

TEST(TransportProperty, EqualsExhaustiveSearch) {
  EXPECT_TRUE(holds("transport", 200, [] {
    TransportProblem problem;
    const int rows = draw(1, 4), columns = draw(1, 4);
    for (int i = 0; i < rows; ++i) problem.demand.push_back(draw(1, 3));
    for (int i = 0; i < columns; ++i) problem.supply.push_back(draw(1, 3));
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c)
        if (problem.edges.size() < 9 && !one_in(3)) problem.edges.push_back({r, c, draw(1, 6)});
    const TransportResult result = transport(problem, 1e9);
    std::vector<int> demand = problem.demand, supply = problem.supply;
    RC_ASSERT(result.weight == best_weight(problem, 0, demand, supply));
    for (const TransportFlow& flow : result.flows) {
      demand[static_cast<std::size_t>(flow.row)] -= flow.amount;
      supply[static_cast<std::size_t>(flow.column)] -= flow.amount;
    }
    for (const auto& left : {demand, supply})
      for (const int amount : left) RC_ASSERT(amount >= 0);
  }));
}

}  // namespace
}  // namespace optimus
