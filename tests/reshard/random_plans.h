// Random plans of one training: the same batch, at most six devices.
#pragma once

#include <algorithm>

#include "engine/equal_training.h"
#include "plan/random_plan.h"

namespace optimus {

// Micro-batches as they come, of a batch that all plans have.
inline void deal_batch(Plan& plan, int batch) {
  int left = batch;
  for (Pipeline& pipeline : plan.pipelines) {
    pipeline.microbatches.clear();
    const bool is_last = &pipeline == &plan.pipelines.back();
    int own = is_last ? left : random_plan::pick(1, left - 1);
    left -= own;
    while (own > 0) {
      pipeline.microbatches.push_back(std::min(own, random_plan::pick(1, 4)));
      own -= pipeline.microbatches.back();
    }
  }
  plan.batch = batch;
}

inline void make_runnable(Plan& plan) {
  for (Pipeline& pipeline : plan.pipelines)
    for (Stage& stage : pipeline.stages) {
      for (Chunk& chunk : stage.chunks)
        for (BlockRun& run : chunk.runs) run.strategy.offload = false;
      if (stage.chunks.front().first() != 0 || stage.chunks.back().end() != plan.num_blocks) continue;
      stage.chunks.back().runs.back().strategy = stage.chunks.front().runs.front().strategy;
    }
}

inline constexpr int kBatch = 6, kMostDevices = 6;

inline Plan random_plan_for(const ModelSpec& model, Precision precision) {
  for (;;) {
    Plan plan = random_plan::plan_for(
        model, {.most_stages = 3, .most_width = 4, .most_pipelines = 2, .most_microbatches = 3});
    if (is_asynchronous(plan.schedule) || num_devices(plan) > kMostDevices) continue;
    plan.sequence_length = kLength, plan.precision = precision;
    plan.accumulators = precision == Precision::fp64 ? Precision::fp64 : Precision::fp32;
    deal_batch(plan, kBatch);
    make_runnable(plan);
    if (!problem_in(plan, model)) return plan;
  }
}

}  // namespace optimus
