// Small models and random plans for property tests. The plans are valid by construction: uneven stages,
// several pipelines, per-layer strategies, odd numbers of devices.
#pragma once

#include <rapidcheck.h>

#include "model/presets.h"
#include "plan/plan.h"
#include "plan/validate.h"

namespace optimus {

inline ModelSpec small_model(int layers, bool is_tied) {
  ModelOverrides overrides;
  overrides.layers = layers, overrides.hidden = 24, overrides.heads = 6, overrides.kv_heads = 2;
  overrides.head_dim = 4, overrides.ffn = 20, overrides.vocab = 37, overrides.max_positions = 64;
  overrides.is_tied = is_tied;
  return with_overrides(*find_preset("llama3-8b"), overrides);
}

// 12 experts, so that 1, 2, 3, 4, 6 or 12 devices can share them; some layers are dense.
inline ModelSpec small_mixture(int layers, bool is_tied, bool has_shared_expert) {
  ModelSpec spec = small_model(layers, is_tied);
  spec.family = Family::qwen3_moe, spec.has_qk_norm = true;
  spec.mixture = {.experts = 12, .experts_per_token = 3, .ffn = 10};
  spec.mixture.shared_ffn = has_shared_expert ? 14 : 0;
  spec.mixture.first_layer = layers > 2 ? 1 : 0;
  return spec;
}

namespace random_plan {

// Both bounds are included. Always samples the whole range; rapidcheck would prefer the lower end in the
// first cases.
inline int pick(int low, int high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
}

inline LayerStrategy strategy(int width, const Plan& plan) {
  std::vector<std::pair<int, int>> splits;
  for (int tp = 1; tp <= std::min(width, 6); ++tp)
    for (int cp = 1; cp <= width; ++cp)
      if (width % (tp * cp) == 0 && cp <= plan.sequence_length) splits.emplace_back(tp, cp);
  LayerStrategy s;
  std::tie(s.tp, s.cp) = *rc::gen::elementOf(splits);
  s.sequence_parallel = s.tp > 1 && *rc::gen::arbitrary<bool>();
  s.zero = pick(0, is_asynchronous(plan.schedule) ? 1 : 3);
  if (s.zero > 0 && *rc::gen::arbitrary<bool>()) {
    std::vector<int> groups;
    for (int group = 1; group <= width / s.tp; ++group)
      if (width / s.tp % group == 0) groups.push_back(group);
    s.shard_group = *rc::gen::elementOf(groups);
  }
  s.recompute = *rc::gen::element(RecomputeMode::none, RecomputeMode::selective, RecomputeMode::full);
  if (s.recompute == RecomputeMode::full) s.recompute_layers = pick(1, 3);
  s.offload = pick(0, 5) == 0;
  return s;
}

// Splits num_blocks into `parts` pieces of at least one block.
inline std::vector<int> cuts(int num_blocks, int parts) {
  std::vector<int> bounds = {0, num_blocks};
  while (std::ssize(bounds) < parts + 1) {
    const int at = pick(1, num_blocks - 1);
    if (std::find(bounds.begin(), bounds.end(), at) == bounds.end()) bounds.push_back(at);
  }
  std::sort(bounds.begin(), bounds.end());
  return bounds;
}

inline Chunk chunk(int first, int end, int width, const Plan& plan) {
  Chunk result;
  while (first < end) {
    const int count = *rc::gen::arbitrary<bool>() ? end - first : pick(1, end - first);
    result.runs.push_back({first, count, strategy(width, plan)});
    first += count;
  }
  return result;
}

struct Limits {
  int most_stages = 4, most_width = 6, most_pipelines = 3, most_microbatches = 5;
};

inline Plan plan_for(const ModelSpec& model, const Limits& limits = {}) {
  Plan plan;
  plan.model = model.name;
  plan.num_blocks = num_blocks(model);
  plan.sequence_length = pick(1, 16);
  plan.schedule = *rc::gen::element(Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved,
                                    Schedule::zero_bubble, Schedule::pipedream, Schedule::pipemare);
  plan.precision = *rc::gen::element(Precision::fp32, Precision::bf16, Precision::fp64);
  plan.accumulators = plan.precision == Precision::fp64 ? Precision::fp64 : Precision::fp32;
  const int num_pipelines = is_asynchronous(plan.schedule) ? 1 : pick(1, limits.most_pipelines);
  int device = 0;
  for (int p = 0; p < num_pipelines; ++p) {
    Pipeline pipeline;
    const int num_chunks = plan.schedule == Schedule::interleaved ? pick(2, std::min(3, plan.num_blocks)) : 1;
    const int num_stages = pick(1, std::min(limits.most_stages, plan.num_blocks / num_chunks));
    const std::vector<int> bounds = cuts(plan.num_blocks, num_stages * num_chunks);
    for (int s = 0; s < num_stages; ++s) {
      Stage stage;
      const int width = pick(1, limits.most_width);
      for (int i = 0; i < width; ++i) stage.devices.push_back(device++);
      for (int c = 0; c < num_chunks; ++c) {
        const auto at = static_cast<std::size_t>(c * num_stages + s);
        stage.chunks.push_back(chunk(bounds[at], bounds[at + 1], width, plan));
      }
      pipeline.stages.push_back(std::move(stage));
    }
    const int m = pick(1, limits.most_microbatches);
    for (int i = 0; i < m; ++i)
      pipeline.microbatches.push_back(pick(1, 4)), plan.batch += pipeline.microbatches.back();
    plan.pipelines.push_back(std::move(pipeline));
  }
  return plan;
}

// Enables redundant shard copies at this distance. A strategy for which the copy would be on the same device
// is changed to zero 0.
inline void enable_shard_copies(Plan& plan, int copy_distance) {
  plan.copy_distance = copy_distance;
  for (Pipeline& pipeline : plan.pipelines)
    for (Stage& stage : pipeline.stages)
      for (Chunk& chunk : stage.chunks)
        for (BlockRun& run : chunk.runs)
          if (run.strategy.zero > 0 && copy_distance % shard_count(stage, run.strategy) == 0)
            run.strategy.zero = run.strategy.shard_group = 0;
}

// Adapts a plan to an MoE model: distributes experts, and cuts positions over tensor parts.
inline void deal_experts(Plan& plan) {
  for (Pipeline& pipeline : plan.pipelines)
    for (Stage& stage : pipeline.stages)
      for (Chunk& chunk : stage.chunks)
        for (BlockRun& run : chunk.runs) {
          std::vector<int> choices;
          for (const int ep : {1, 2, 3, 4, 6, 12})
            if (std::ssize(stage.devices) % ep == 0) choices.push_back(ep);
          run.strategy.ep = *rc::gen::elementOf(choices);
          run.strategy.sequence_parallel = run.strategy.tp > 1;
        }
}

}  // namespace random_plan

inline ModelSpec random_small_model(const Schedule* schedule = nullptr) {
  const bool must_be_untied = schedule != nullptr && is_asynchronous(*schedule);
  return small_model(random_plan::pick(1, 6), !must_be_untied && *rc::gen::arbitrary<bool>());
}

}  // namespace optimus
