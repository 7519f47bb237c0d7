#include "simulate/availability.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>

#include "base/error.h"

namespace optimus {
namespace {

TEST(Availability, ReadsAllForms) {
  const AvailabilityTrace events = parse_trace("0,add,a\n0,add,b\n5000,remove,a\n", "t");
  EXPECT_EQ(events.num_nodes, 2);
  EXPECT_EQ(events.length, 5);
  const AvailabilityTrace counts = parse_trace("0,3\n2000,1\n9000,2\n", "t");
  const std::vector<NodeCount> steps = node_counts(counts);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[1].nodes, 1);
  EXPECT_EQ(steps[2].seconds, 9);
  const AvailabilityTrace clock = parse_trace("2020-12-31, 23:59:50, 4\n2021-01-01, 00:00:10, 2\n", "t");
  EXPECT_EQ(node_counts(clock)[1].seconds, 20);
}

TEST(Availability, RefusesNonsense) {
  EXPECT_THROW(parse_trace("", "t"), UserError);
  EXPECT_THROW(parse_trace("0,add,a\n1,add,a\n", "t"), UserError);
  EXPECT_THROW(parse_trace("0,remove,a\n", "t"), UserError);
  EXPECT_THROW(parse_trace("5,add,a\n1,add,b\n", "t"), UserError);
  EXPECT_THROW(parse_trace("x,add,a\n", "t"), UserError);
  EXPECT_THROW(parse_trace("0,1e99\n", "t"), UserError);
  EXPECT_THROW(parse_trace("a,b,c,d\n", "t"), UserError);
}

TEST(Availability, OnePlanLosesTheStepInFlight) {
  // Two nodes for 100 s; one goes, and is back at 150 s; the trace ends at 300 s.
  const AvailabilityTrace trace =
      parse_trace("0,add,a\n0,add,b\n100000,remove,b\n150000,add,b\n300000,add,c\n", "t");
  const Replay replay = replay_one_plan(
      trace, {.nodes_needed = 2, .step_seconds = 30, .tokens_per_step = 10, .restart_seconds = 5});
  // 95 s: 3 steps; 145 s: 4 steps. Possible were 100 + 150 s.
  EXPECT_DOUBLE_EQ(replay.useful_tokens_per_second, 70.0 / 300);
  EXPECT_DOUBLE_EQ(replay.fraction_of_oracle, 210.0 / 250);
  EXPECT_EQ(replay.restarts, 2);
  EXPECT_EQ(replay.steps_lost, 2);
  EXPECT_DOUBLE_EQ(replay.seconds_lost, 40);
}

TEST(Availability, NeverMoreThanTheOracle) {
  EXPECT_TRUE(rc::check([] {
    std::string text;
    double now = 0;
    const int lines = *rc::gen::inRange(1, 30);
    for (int i = 0; i < lines; ++i) {
      now += *rc::gen::inRange(0, 100000);
      text += std::to_string(static_cast<long>(now)) + "," +
              std::to_string(*rc::gen::inRange(i == 0 ? 1 : 0, 9)) + "\n";
    }
    const AvailabilityTrace trace = parse_trace(text, "random");
    const Replay replay =
        replay_one_plan(trace, {.nodes_needed = *rc::gen::inRange(1, 9),
                                .step_seconds = 1.0 + *rc::gen::inRange(0, 50),
                                .restart_seconds = static_cast<double>(*rc::gen::inRange(0, 60))});
    RC_ASSERT(replay.fraction_of_oracle >= 0 && replay.fraction_of_oracle <= 1);
    RC_ASSERT(replay.steps_lost <= replay.restarts);
  }));
}

}  // namespace
}  // namespace optimus
