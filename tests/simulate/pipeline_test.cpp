#include "simulate/pipeline.h"

#include <gtest/gtest.h>

#include "schedule/picture.h"

namespace optimus {
namespace {

StageTimes unit_stage(int chunks) {
  StageTimes times;
  for (auto* list : {&times.first_forward, &times.forward, &times.backward, &times.last_backward,
                     &times.weight, &times.last_weight})
    list->assign(static_cast<std::size_t>(chunks), {});
  for (auto* list : {&times.first_forward, &times.forward})
    for (SlotTime& slot : *list) slot = {1, {.compute = 1}};
  for (auto* list : {&times.backward, &times.last_backward})
    for (SlotTime& slot : *list) slot = {2, {.compute = 2}};
  return times;
}

double length(const PipelineTimes& times) {
  double most = 0;
  for (const double end : times.stage_ends) most = std::max(most, end);
  return most;
}

PipelineTimes run_units(Schedule schedule, int stages, int microbatches, int chunks, const StageTimes& unit,
                        double message = 0, StageMessaging messages = StageMessaging::beside) {
  std::vector<Order> orders;
  for (int s = 0; s < stages; ++s) orders.push_back(order_of(schedule, {s, stages, microbatches, chunks}));
  std::vector<PipelineStage> all;
  for (const Order& order : orders) all.push_back({&unit, &order, message, message});
  return run_pipeline(all, std::vector<double>(static_cast<std::size_t>(microbatches), 1.0), messages);
}

// With unit times the length equals the one that schedule/picture.h computes independently.
TEST(Pipeline, MatchesScheduleFormulas) {
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved})
    for (const int stages : {1, 2, 3, 4, 8})
      for (const int microbatches : {1, 2, 5, 8, 16}) {
        const int chunks = schedule == Schedule::interleaved ? 2 : 1;
        const StageTimes unit = unit_stage(chunks);
        const PipelineTimes times = run_units(schedule, stages, microbatches, chunks, unit);
        EXPECT_DOUBLE_EQ(length(times), unit_times(schedule, stages, microbatches, chunks).length)
            << text(schedule) << " " << stages << " " << microbatches;
      }
}

TEST(Pipeline, SplitAddsUpToStageEnd) {
  const StageTimes unit = unit_stage(1);
  const PipelineTimes times = run_units(Schedule::one_f_one_b, 4, 6, 1, unit, 0.25, StageMessaging::paired);
  for (std::size_t s = 0; s < 4; ++s) EXPECT_NEAR(times.splits[s].total(), times.stage_ends[s], 1e-12);
}

TEST(Pipeline, MessagesCostMoreWithLessOverlap) {
  const StageTimes unit = unit_stage(1);
  const auto with = [&](StageMessaging messages) {
    return length(run_units(Schedule::one_f_one_b, 4, 16, 1, unit, 0.1, messages));
  };
  const double none = length(run_units(Schedule::one_f_one_b, 4, 16, 1, unit));
  EXPECT_GT(with(StageMessaging::beside), none);
  EXPECT_GT(with(StageMessaging::paired), with(StageMessaging::beside));
  EXPECT_GT(with(StageMessaging::sequential), with(StageMessaging::paired));
}

}  // namespace
}  // namespace optimus
