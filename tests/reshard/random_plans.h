// Random plans of one training: the same batch, at most six devices.
#pragma once

#include <algorithm>
#include <functional>
#include <mutex>

#include "engine/equal_training.h"
#include "plan/random_plan.h"

namespace optimus {

// Random micro-batches of a fixed batch.
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
      if (stage.chunks.front().first_block() != 0 || stage.chunks.back().end_block() != plan.num_blocks)
        continue;
      stage.chunks.back().runs.back().strategy = stage.chunks.front().runs.front().strategy;
    }
}

inline constexpr int kBatch = 6, kNumRanks = 6;

inline Plan random_plan_for(const ModelSpec& model, Precision precision) {
  for (;;) {
    Plan plan = random_plan::plan_for(
        model, {.most_stages = 3, .most_width = 4, .most_pipelines = 2, .most_microbatches = 3});
    if (is_asynchronous(plan.schedule) || num_devices(plan) > kNumRanks) continue;
    plan.sequence_length = kLength, plan.precision = precision;
    plan.accumulators = precision == Precision::fp64 ? Precision::fp64 : Precision::fp32;
    deal_batch(plan, kBatch);
    make_runnable(plan);
    if (random_plan::pick(0, 2) == 0) random_plan::enable_shard_copies(plan, random_plan::pick(1, 3));
    if (!find_problem(plan, model)) return plan;
  }
}

// Runs the ranks of a run as threads, each with its Comm; returns the errors of all ranks.
inline std::vector<std::string> on_all_ranks(const std::function<void(Comm& comm)>& body) {
  ThreadWorld world(kNumRanks);
  std::vector<std::string> problems;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kNumRanks; ++rank)
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Comm> comm = world.comm(rank);
      try {
        body(*comm);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        problems.push_back(fmt::format("rank {}: {}", rank, error.what()));
      }
    });
  for (std::thread& thread : threads) thread.join();
  return problems;
}

}  // namespace optimus
