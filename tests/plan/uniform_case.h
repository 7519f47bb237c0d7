// Random models and uniform plans that Megatron-LM can run unchanged.
#pragma once

#include "plan/random_plan.h"

namespace optimus::uniform_case {

using random_plan::pick;

inline ModelSpec model(std::int64_t least_layers) {
  ModelSpec spec = *find_preset(
      *rc::gen::element<std::string>("gpt3-125m", "llama2-7b", "qwen2-7b", "qwen3-8b", "megatron-bert-345m"));
  spec.name = "imported";
  spec.layers = least_layers + pick(0, 6);
  spec.heads = 8, spec.head_dim = 4, spec.hidden = 32, spec.ffn = 64;
  spec.kv_heads = spec.is_gated ? *rc::gen::element(2, 4, 8) : 8;
  spec.vocab = pick(100, 60000), spec.max_positions = 4096;
  if (!spec.is_bert()) spec.is_tied = *rc::gen::arbitrary<bool>();
  if (spec.positions == PositionKind::rope) {
    spec.rope_theta = pick(1000, 1'000'000);
    spec.rope_scaling = *rc::gen::element(RopeScaling{}, RopeScaling{RopeScalingKind::linear, 4, 1, 4, 0},
                                          RopeScaling{RopeScalingKind::llama3, 8.5, 1, 4, 8192});
  }
  spec.attention_dropout = *rc::gen::element(0.0, 0.1);
  spec.hidden_dropout = spec.embedding_dropout = *rc::gen::element(0.0, 0.25);
  spec.norm_eps = *rc::gen::element(1e-5, 1e-6);
  return spec;
}

struct Case {
  ModelSpec model;
  UniformPlan shape;
  Plan plan;
};

inline void choose_state(UniformPlan& shape) {
  LayerStrategy& s = shape.strategy;
  s.zero = pick(0, 3);
  s.offload = s.zero > 0 && *rc::gen::arbitrary<bool>();
  const int group = shape.dp * s.cp;
  if (s.zero > 0)
    if (const int shards = pick(1, group); shards < group && group % shards == 0) s.shard_group = shards;
  s.recompute = *rc::gen::element(RecomputeMode::none, RecomputeMode::selective, RecomputeMode::full);
  if (s.recompute == RecomputeMode::full) s.recompute_layers = pick(1, 3);
}

// A range of fp8 layers and the source of their scales.
inline void choose_fp8(Plan& plan) {
  const int layers = plan.num_blocks - 2;
  plan.fp8.window = pick(1, 1024);
  const LayerStrategy& s = plan.pipelines[0].stages[0].chunks[0].runs[0].strategy;
  if (s.tp == 1 && s.cp == 1 && *rc::gen::arbitrary<bool>()) {
    plan.fp8 = Fp8Plan();
    plan.fp8.scaling = Fp8Scaling::current;
  }
  if (pick(0, 2) == 0) return;  // the default
  const int first = pick(1, layers), last = pick(first, layers);
  if (first == 2 && last == layers - 1) return;
  for (int block = first; block <= last; ++block) plan.fp8.blocks.push_back(block);
}

inline Case any() {
  UniformPlan shape;
  LayerStrategy& s = shape.strategy;
  shape.pp = pick(1, 4);
  shape.chunks = shape.pp > 1 ? pick(1, 3) : 1;
  shape.schedule = shape.chunks > 1 ? Schedule::interleaved : Schedule::one_f_one_b;
  shape.dp = pick(1, 4);
  s.tp = *rc::gen::element(1, 2, 4, 8);
  s.cp = *rc::gen::element(1, 2, 3);
  s.sequence_parallel = s.tp > 1 && *rc::gen::arbitrary<bool>();
  choose_state(shape);
  shape.microbatch = pick(1, 3);
  shape.batch = std::int64_t{shape.dp} * shape.microbatch * (shape.pp + pick(0, 9));
  shape.sequence_length = 2 * s.cp * s.tp * pick(1, 16);
  shape.precision = *rc::gen::element(Precision::fp32, Precision::bf16, Precision::fp16, Precision::fp8);
  Case result{model(std::int64_t{shape.pp} * shape.chunks), shape, {}};
  result.plan = uniform_plan(result.model, shape);
  if (bytes_of(shape.precision) == 2 && shape.precision != Precision::fp8 && *rc::gen::arbitrary<bool>())
    result.plan.accumulators = shape.precision;
  if (shape.precision == Precision::fp8) choose_fp8(result.plan);
  return result;
}

}  // namespace optimus::uniform_case
