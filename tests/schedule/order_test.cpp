// Schedules as data: their texts, their bubbles, their saved activations.
#include "schedule/order.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "schedule/picture.h"

namespace optimus {
namespace {

TEST(Order, MatchesPapers) {
  EXPECT_EQ(text(gpipe({.stage = 0, .num_stages = 2, .num_microbatches = 3})), "F0 F1 F2 B2 B1 B0");
  EXPECT_EQ(text(one_f_one_b({.stage = 0, .num_stages = 2, .num_microbatches = 3})), "F0 F1 B0 F2 B1 B2");
  EXPECT_EQ(text(one_f_one_b({.stage = 1, .num_stages = 2, .num_microbatches = 3})), "F0 B0 F1 B1 F2 B2");
  EXPECT_EQ(text(one_f_one_b({.stage = 0, .num_stages = 4, .num_microbatches = 2})), "F0 F1 B0 B1");
  EXPECT_EQ(text(zero_bubble({.stage = 0, .num_stages = 2, .num_microbatches = 3})),
            "F0 F1 B0 W0 F2 B1 W1 B2 W2");
  EXPECT_EQ(text(zero_bubble({.stage = 1, .num_stages = 2, .num_microbatches = 3})),
            "F0 B0 F1 B1 W0 F2 B2 W1 W2");
  EXPECT_EQ(text(asynchronous({.stage = 0, .num_stages = 2, .num_microbatches = 3})),
            "F0 F1 B0 U0 F2 B1 U1 B2 U2");
  EXPECT_EQ(text(interleaved({.stage = 1, .num_stages = 2, .num_microbatches = 2, .num_chunks = 2})),
            "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0");
}

constexpr Schedule kAll[] = {Schedule::gpipe,       Schedule::one_f_one_b, Schedule::interleaved,
                             Schedule::zero_bubble, Schedule::pipedream,   Schedule::pipemare};

TEST(Order, EveryMicrobatchVisitsEveryChunkOnce) {
  for (const Schedule schedule : kAll)
    for (int p = 1; p <= 5; ++p)
      for (int m = 1; m <= 9; ++m)
        for (int v = schedule == Schedule::interleaved ? 2 : 1;
             v <= (schedule == Schedule::interleaved ? 3 : 1); ++v)
          for (int stage = 0; stage < p; ++stage) {
            const StagePosition at{stage, p, m, v};
            std::set<std::pair<int, int>> forward, backward, weight;
            int saved = 0, most = 0;
            for (const Slot& slot : order_of(schedule, at)) {
              const std::pair key{slot.microbatch, slot.chunk};
              if (slot.work == Work::forward) {
                EXPECT_TRUE(forward.insert(key).second);
                most = std::max(most, ++saved);
              } else if (slot.work == Work::backward || slot.work == Work::backward_input) {
                EXPECT_TRUE(forward.contains(key) && backward.insert(key).second);
                if (slot.work == Work::backward) --saved;
              } else if (slot.work == Work::backward_weight) {
                EXPECT_TRUE(backward.contains(key) && weight.insert(key).second);
                --saved;
              }
            }
            EXPECT_EQ(std::ssize(forward), m * v);
            EXPECT_EQ(forward, backward);
            if (schedule == Schedule::zero_bubble) {
              EXPECT_EQ(weight, forward);
            }
            EXPECT_EQ(most, max_saved_microbatches(schedule, at))
                << text(schedule) << " stage " << stage << " of " << p << ", m " << m << ", v " << v;
          }
}

TEST(Order, BubblesMatchFormulas) {
  for (int p = 1; p <= 8; ++p)
    for (int m = p; m <= 4 * p; m += p) {
      const double plain = static_cast<double>(p - 1) / m;
      EXPECT_DOUBLE_EQ(unit_times(Schedule::gpipe, p, m, 1).bubble(), plain);
      EXPECT_DOUBLE_EQ(unit_times(Schedule::one_f_one_b, p, m, 1).bubble(), plain);
      for (int v = 2; v <= 4; ++v)
        EXPECT_DOUBLE_EQ(unit_times(Schedule::interleaved, p, m, v).bubble(), plain / v);
      // Forward, input gradient and weight gradient take one unit each: (p - 1)(1 + 1 - 1) idle of 3 m.
      const double zero = unit_times(Schedule::zero_bubble, p, m, 1).bubble();
      EXPECT_DOUBLE_EQ(zero, plain / 3);
      if (p > 1) {
        EXPECT_LT(zero, unit_times(Schedule::one_f_one_b, p, m, 1).bubble());
        EXPECT_LT(zero, unit_times(Schedule::interleaved, p, m, 2).bubble());
      }
    }
}

TEST(Order, OddMicrobatchCountsDoNotDeadlock) {
  for (const Schedule schedule : kAll)
    for (int p = 1; p <= 6; ++p)
      for (int m = 1; m <= 13; ++m) {
        const SlotTimes times =
            // checks internally that it terminates
            unit_times(schedule, p, m, schedule == Schedule::interleaved ? 3 : 1);
        EXPECT_GE(times.bubble(), 0);
      }
}

TEST(Picture, DrawsStep) {
  ModelSpec model;
  Plan plan;
  plan.schedule = Schedule::one_f_one_b, plan.num_blocks = 3;
  plan.pipelines.push_back({{{{0}, {{{{0, 2, {}}}}}}, {{1}, {{{{2, 1, {}}}}}}}, {1, 1, 1}});
  EXPECT_EQ(draw_timeline(plan, 100),
            "pipeline 0: 1f1b, 2 stages, 3 micro-batches; bubble 33.3 % of the work\n"
            "stage 0   F0 F1       B0--- F2 B1---    B2--- \n"
            "stage 1      F0 B0--- F1 B1--- F2 B2---       \n");
  EXPECT_NE(draw_timeline(plan, 20).find("the first 6 of 12 time units"), std::string::npos);
}

}  // namespace
}  // namespace optimus
