// verify rejects every invalid plan. (diff_test checks that it accepts valid ones.)
#include "layout/verify.h"

#include <gtest/gtest.h>

#include "layout/cover.h"
#include "property.h"
#include "random_layout.h"

namespace optimus {
namespace {

// Inserts or removes transfer `at` and adjusts the indices of the waves after it.
void shift_waves(TransferPlan& plan, std::size_t at, int by) {
  for (TransferWave& wave : plan.waves) {
    if (wave.transfers_begin > at) wave.transfers_begin += static_cast<std::size_t>(by);
    if (wave.transfers_end > at) wave.transfers_end += static_cast<std::size_t>(by);
  }
}

bool is_refused(const Scenario& scenario, const TransferPlan& plan) {
  return !verify(scenario.from, scenario.to, plan, scenario.options).has_value();
}

std::size_t any_transfer(const TransferPlan& plan) {
  return static_cast<std::size_t>(draw(0, static_cast<int>(plan.transfers.size()) - 1));
}

bool owns(const Layout& layout, Rank rank, int tensor, const Box& box) {
  for (const TensorBox& held : boxes_of(layout, RankIndex(layout), rank))
    if (held.tensor == tensor && held.box.contains(box)) return true;
  return false;
}

// Calls use(scenario, plan, index of a transfer) for random plans that have a transfer.
template <typename Use>
void with_random_plan(const Use& use) {
  const Scenario scenario = random_scenario();
  TransferPlan plan = diff(scenario.from, scenario.to, scenario.options).value();
  if (!plan.transfers.empty()) use(scenario, plan, any_transfer(plan));
}

TEST(VerifyProperty, RejectsDroppedTransfer) {
  EXPECT_TRUE(holds("dropped", 100, [] {
    with_random_plan([](const Scenario& scenario, TransferPlan& plan, std::size_t at) {
      plan.transfers.erase(plan.transfers.begin() + static_cast<std::ptrdiff_t>(at));
      shift_waves(plan, at, -1);
      RC_ASSERT(is_refused(scenario, plan));
    });
  }));
}

TEST(VerifyProperty, RejectsRepeatedTransfer) {
  EXPECT_TRUE(holds("repeated", 100, [] {
    with_random_plan([](const Scenario& scenario, TransferPlan& plan, std::size_t at) {
      plan.transfers.insert(plan.transfers.begin() + static_cast<std::ptrdiff_t>(at), plan.transfers[at]);
      shift_waves(plan, at, 1);
      RC_ASSERT(is_refused(scenario, plan));
    });
  }));
}

TEST(VerifyProperty, RejectsSenderWithoutData) {
  EXPECT_TRUE(holds("wrong sender", 100, [] {
    with_random_plan([](const Scenario& scenario, TransferPlan& plan, std::size_t at) {
      Transfer& transfer = plan.transfers[at];
      for (int r = 0; r < num_ranks(scenario.from); ++r)
        if (!owns(scenario.from, Rank{r}, transfer.tensor,
                  plan.boxes[static_cast<std::size_t>(transfer.box)])) {
          transfer.sender = Rank{r};
          RC_ASSERT(is_refused(scenario, plan));
        }
    });
  }));
}

TEST(VerifyProperty, RejectsWrongReceiverOrBox) {
  EXPECT_TRUE(holds("wrong receiver or box", 100, [] {
    with_random_plan([](const Scenario& scenario, TransferPlan& plan, std::size_t at) {
      const Transfer right = plan.transfers[at];
      for (int r = 0; r < std::max(num_ranks(scenario.from), num_ranks(scenario.to)); ++r) {
        if (Rank{r} == right.receiver) continue;
        plan.transfers[at].receiver = Rank{r};
        RC_ASSERT(is_refused(scenario, plan));
      }
      plan.transfers[at] = right;
      for (int box = 0; box < static_cast<int>(plan.boxes.size()); ++box) {
        if (plan.boxes[static_cast<std::size_t>(box)] == plan.boxes[static_cast<std::size_t>(right.box)])
          continue;
        plan.transfers[at].box = box;
        RC_ASSERT(is_refused(scenario, plan));
      }
    });
  }));
}

TEST(VerifyProperty, RejectsDroppedOrRepeatedCopy) {
  EXPECT_TRUE(holds("copies", 100, [] {
    const Scenario scenario = random_scenario();
    const TransferPlan right = diff(scenario.from, scenario.to, scenario.options).value();
    if (right.copies.empty()) return;
    const auto at = static_cast<std::ptrdiff_t>(draw(0, static_cast<int>(right.copies.size()) - 1));
    for (const int by : {-1, 1}) {
      TransferPlan plan = right;
      if (by < 0) plan.copies.erase(plan.copies.begin() + at);
      if (by > 0) plan.copies.insert(plan.copies.begin() + at, plan.copies[static_cast<std::size_t>(at)]);
      for (TransferWave& wave : plan.waves) {
        if (wave.copies_begin > static_cast<std::size_t>(at))
          wave.copies_begin += static_cast<std::size_t>(by);
        if (wave.copies_end > static_cast<std::size_t>(at)) wave.copies_end += static_cast<std::size_t>(by);
      }
      RC_ASSERT(is_refused(scenario, plan));
    }
  }));
}

TEST(VerifyProperty, RejectsRedundantSend) {
  int num_seen = 0;
  EXPECT_TRUE(holds("needless", 200, [&] {
    const Scenario scenario = random_scenario();
    TransferPlan plan = diff(scenario.from, scenario.to, scenario.options).value();
    if (plan.copies.empty()) return;
    // The last copy becomes a transfer in the last wave that has one, from another rank that has the box.
    while (plan.waves.back().copies_begin == plan.copies.size()) {
      plan.waves.pop_back();
      plan.transfers.resize(plan.waves.back().transfers_end);
    }
    const LocalCopy copy = plan.copies.back();
    plan.copies.pop_back(), --plan.waves.back().copies_end;
    plan.transfers.push_back({copy.tensor, copy.box, Rank{}, copy.rank}), ++plan.waves.back().transfers_end;
    for (int r = 0; r < num_ranks(scenario.from); ++r) {
      if (Rank{r} == copy.rank) continue;
      if (!owns(scenario.from, Rank{r}, copy.tensor, plan.boxes[static_cast<std::size_t>(copy.box)]))
        continue;
      plan.transfers.back().sender = Rank{r};
      RC_ASSERT(is_refused(scenario, plan));
      const auto why = verify(scenario.from, scenario.to, plan, scenario.options).error().why;
      num_seen += why.find("already holds a part") != std::string::npos ? 1 : 0;
    }
  }));
  EXPECT_GT(num_seen, 10);
}

TEST(VerifyProperty, RejectsDeadSender) {
  EXPECT_TRUE(holds("dead sender", 100, [] {
    with_random_plan([](Scenario scenario, TransferPlan& plan, std::size_t at) {
      scenario.options.dead = {plan.transfers[at].sender};
      RC_ASSERT(is_refused(scenario, plan));
    });
  }));
}

// A single wave exceeds the memory limit exactly if the plan needs less memory than a single wave.
TEST(VerifyProperty, RejectsMergedWavesAboveMemoryLimit) {
  int num_refused = 0;
  EXPECT_TRUE(holds("merged waves", 200, [&] {
    Scenario scenario = random_scenario();
    TransferPlan plan = diff(scenario.from, scenario.to, scenario.options).value();
    scenario.options.reserve = plan.reserve;
    RC_ASSERT(!is_refused(scenario, plan));
    if (plan.waves.size() < 2) return;
    TransferWave all{{}, 0, plan.transfers.size(), 0, plan.copies.size()};
    for (const TransferWave& wave : plan.waves)
      all.tensors.insert(all.tensors.end(), wave.tensors.begin(), wave.tensors.end());
    plan.waves = {all};
    const RankIndex from_index(scenario.from), to_index(scenario.to);
    bool exceeds = false;
    for (int r = 0; r < std::max(from_index.num_ranks(), to_index.num_ranks()); ++r) {
      Bytes held = bytes_of(scenario.from, from_index, Rank{r});
      const Bytes bound = std::max(held, bytes_of(scenario.to, to_index, Rank{r})) + plan.reserve;
      const auto old_boxes = boxes_of(scenario.from, from_index, Rank{r});
      for (const TensorBox& box : boxes_of(scenario.to, to_index, Rank{r}))
        if (std::find(old_boxes.begin(), old_boxes.end(), box) == old_boxes.end())
          held += Bytes(box.box.num_elements() *
                        scenario.to.tensors[static_cast<std::size_t>(box.tensor)].bytes_per_element);
      exceeds = exceeds || held > bound;
    }
    num_refused += exceeds ? 1 : 0;
    RC_ASSERT(is_refused(scenario, plan) == exceeds);
  }));
  EXPECT_GT(num_refused, 10);
}

TEST(Verify, NamesRankTensorAndBox) {
  const Layout from{{{"w", {4, 4}, 1, 0}}, {{1, 1, 2, first_ranks(2)}}, {{{0, 0, {{0, 2}, {2, 4}}}}}};
  Layout to = from;
  to.placements[0][0] = {0, 1, {{0, 2}, {2, 4}}};
  TransferPlan plan = diff(from, to).value();
  plan.transfers.pop_back();
  plan.waves[0].transfers_end--;
  EXPECT_EQ(verify(from, to, plan).error().why, "rank 1 receives [0:2, 2:4] of 'w' 0 times");
  plan = diff(from, to).value();
  plan.waves.clear();
  EXPECT_FALSE(verify(from, to, plan));
  plan.transfers.clear(), plan.copies.clear();
  EXPECT_EQ(verify(from, to, plan).error().why, "tensor 'w' changes on rank 0, but no wave includes it");
  plan = diff(from, to).value();
  plan.transfers[0].box = 99;
  EXPECT_FALSE(verify(from, to, plan));
  plan.transfers[0] = {0, 0, Rank{-1}, Rank{0}};
  EXPECT_FALSE(verify(from, to, plan));
}

TEST(Deadlock, DetectsCrossedWaves) {
  // Rank 0 needs a before b, rank 1 sends b before a, in one wave each.
  const std::vector<std::vector<PostedOperation>> crossed{{{0, 1, false, 7}, {1, 1, true, 8}},
                                                          {{0, 0, false, 8}, {1, 0, true, 7}}};
  EXPECT_EQ(check_no_deadlock(crossed).error().why,
            "rank 0 waits forever in wave 0 for 1 of its sends and receives");
  // In the same wave, the operations match.
  const std::vector<std::vector<PostedOperation>> together{{{0, 1, false, 7}, {0, 1, true, 8}},
                                                           {{0, 0, false, 8}, {0, 0, true, 7}}};
  EXPECT_TRUE(check_no_deadlock(together));
}

TEST(Deadlock, WavesMayBeFarApart) {
  // Rank 0 finishes after its first wave, while ranks 1 and 2 have three waves.
  const std::vector<std::vector<PostedOperation>> programs{
      {{0, 2, true, 1}},
      {{1, 2, true, 2}, {2, 2, false, 3}},
      {{0, 0, false, 1}, {1, 1, false, 2}, {2, 1, true, 3}}};
  EXPECT_TRUE(check_no_deadlock(programs));
}

TEST(Deadlock, DetectsMismatchedReceive) {
  const std::vector<std::vector<PostedOperation>> swapped{{{0, 1, true, 1}, {0, 1, true, 2}},
                                                          {{0, 0, false, 2}, {0, 0, false, 1}}};
  EXPECT_EQ(check_no_deadlock(swapped).error().why,
            "in wave 0, rank 0 sends rank 1 data that differs from what the receiver expects");
  const std::vector<std::vector<PostedOperation>> receive_only{{{0, 5, true, 1}}};
  EXPECT_FALSE(check_no_deadlock(receive_only));
  const std::vector<std::vector<PostedOperation>> alone{{{0, 1, true, 1}}, {}};
  EXPECT_FALSE(check_no_deadlock(alone));
}

TEST(Cover, FindsMissingRepeatedAndUnwanted) {
  const Box whole{{0, 4}, {0, 4}};
  EXPECT_FALSE(find_cover_mistake({whole}, {{{0, 4}, {0, 2}}, {{0, 2}, {2, 4}}, {{2, 4}, {2, 4}}}));
  EXPECT_EQ(find_cover_mistake({whole}, {{{0, 4}, {0, 2}}, {{0, 2}, {2, 4}}})->num_pieces, 0);
  EXPECT_EQ(find_cover_mistake({whole}, {whole, {{1, 2}, {1, 2}}})->num_pieces, 2);
  EXPECT_EQ(find_cover_mistake({whole}, {whole, {{4, 5}, {1, 2}}})->box, (Box{{4, 5}, {1, 2}}));
  EXPECT_FALSE(
      find_cover_mistake({whole, {{2, 6}, {0, 4}}}, {whole, {{4, 6}, {0, 4}}}));  // overlapping wanted boxes
}

}  // namespace
}  // namespace optimus
