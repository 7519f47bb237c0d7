// Implements the rules, from the outermost properties of the plan to the innermost: numbers, pipelines,
// stages, strategies, then the rules of the schedule and of the model. Each rule is one `if` with its
// message.
#include "plan/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "plan/fp8.h"

namespace optimus {
namespace {

using Problem = std::optional<std::string>;

template <typename... Args>
Problem problem_text(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}

std::string name_of(int pipeline, int stage) { return fmt::format("pipeline {}, stage {}", pipeline, stage); }

Problem problem_in_numbers(const Plan& plan) {
  if (plan.batch < 1) return problem_text("batch: expected at least 1, got {}", plan.batch);
  if (plan.sequence_length < 1)
    return problem_text("sequence length: expected at least 1, got {}", plan.sequence_length);
  if (plan.num_blocks < 1)
    return problem_text("the model: expected at least 1 block, got {}", plan.num_blocks);
  if (plan.pipelines.empty()) return problem_text("the plan has no pipelines");
  const bool is_supported = plan.accumulators == plan.precision ||
                            (plan.accumulators == Precision::fp32 && bytes_of(plan.precision) <= 4);
  if (!is_supported || plan.accumulators == Precision::fp8)
    return problem_text("accumulators of {} cannot be combined with precision {}; use {}",
                        text(plan.accumulators), text(plan.precision),
                        plan.precision == Precision::fp64 ? "fp64"
                        : plan.precision == Precision::fp32 || plan.precision == Precision::fp8
                            ? "fp32"
                            : "fp32 or " + text(plan.precision));
  if (plan.copy_distance < 0)
    return problem_text(
        "copy_distance: expected 0 or a positive distance between a shard and its copy, got {}",
        plan.copy_distance);
  return std::nullopt;
}

Problem problem_in_fp8(const Plan& plan) {
  const std::vector<int>& blocks = plan.fp8.blocks;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i] < 1 || blocks[i] > plan.num_blocks - 2)
      return problem_text("fp8: block {} is not a layer; layers are blocks 1 to {}", blocks[i],
                          plan.num_blocks - 2);
    if (i > 0 && blocks[i] <= blocks[i - 1])
      return problem_text("fp8: block {} follows block {}; list each block once, in ascending order",
                          blocks[i], blocks[i - 1]);
  }
  if (plan.fp8.window < 1 || plan.fp8.window > kMaxFp8Window)
    return problem_text("fp8 window: expected 1 to {} steps, got {}", kMaxFp8Window, plan.fp8.window);
  if (!blocks.empty() && plan.precision == Precision::fp16)
    return problem_text("fp8: fp16 needs loss scaling; use precision fp8, bf16, fp32 or fp64");
  return std::nullopt;
}

// Current scaling requires unsplit tensors, because devices that hold different parts of a tensor would
// otherwise have to exchange its amax in the middle of a layer.
Problem problem_in_current_scales(const Plan& plan) {
  if (plan.fp8.scaling != Fp8Scaling::current) return std::nullopt;
  const std::vector<int> blocks = fp8_blocks(plan);
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const Chunk& chunk : stage.chunks)
        for (const BlockRun& run : chunk.runs) {
          const auto fp8_block = std::lower_bound(blocks.begin(), blocks.end(), run.first_block);
          if (fp8_block == blocks.end() || *fp8_block >= run.first_block + run.count) continue;
          if (run.strategy.tp > 1 || run.strategy.cp > 1)
            return problem_text(
                "fp8: block {} has tp {} and cp {}, but current scaling requires tensors that are not split; "
                "use "
                "\"scales\": \"window\", or tp 1 and cp 1",
                *fp8_block, run.strategy.tp, run.strategy.cp);
        }
  return std::nullopt;
}

Problem problem_in_devices(const Plan& plan) {
  std::vector<int> devices;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      devices.insert(devices.end(), stage.devices.begin(), stage.devices.end());
  std::sort(devices.begin(), devices.end());
  if (!devices.empty() && devices.front() < 0) return problem_text("device {} is negative", devices.front());
  if (!devices.empty() && devices.back() >= kMaxPlanDevices)
    return problem_text("device {} exceeds the limit of {} devices per plan", devices.back(),
                        kMaxPlanDevices);
  const auto duplicate = std::adjacent_find(devices.begin(), devices.end());
  if (duplicate != devices.end())
    return problem_text("device {} is used twice; each device may be in one stage only", *duplicate);
  return std::nullopt;
}

Problem problem_in_microbatches(const Plan& plan) {
  std::int64_t total = 0;
  for (std::size_t p = 0; p < plan.pipelines.size(); ++p) {
    const std::vector<int>& sizes = plan.pipelines[p].microbatches;
    if (sizes.empty()) return problem_text("pipeline {} has no micro-batches", p);
    const auto small = std::find_if(sizes.begin(), sizes.end(), [](int n) { return n < 1; });
    if (small != sizes.end())
      return problem_text("pipeline {}: expected at least 1 sequence in every micro-batch, got {}", p,
                          *small);
    total = std::accumulate(sizes.begin(), sizes.end(), total);
  }
  if (total != plan.batch)
    return problem_text("the micro-batches: expected {} sequences in total (the batch), got {}", plan.batch,
                        total);
  return std::nullopt;
}

// The chunks must tile [0, num_blocks) in this order: chunk c of every stage, then chunk c + 1 of every
// stage.
Problem problem_in_blocks(const Plan& plan, int p) {
  const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(p)];
  const std::size_t num_chunks = pipeline.stages.front().chunks.size();
  int next_block = 0;
  for (std::size_t c = 0; c < num_chunks; ++c)
    for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
      const std::vector<BlockRun>& runs = pipeline.stages[s].chunks[c].runs;
      if (runs.empty()) return problem_text("{}, chunk {} has no blocks", name_of(p, static_cast<int>(s)), c);
      for (const BlockRun& run : runs) {
        if (run.count < 1)
          return problem_text("{}, chunk {}: expected runs of at least 1 block, got {}",
                              name_of(p, static_cast<int>(s)), c, run.count);
        if (run.first_block != next_block)
          return problem_text("{}, chunk {}: expected to start at block {}, got {}",
                              name_of(p, static_cast<int>(s)), c, next_block, run.first_block);
        if (run.count > plan.num_blocks - next_block)
          return problem_text("pipeline {}: expected the {} blocks of the model, got blocks up to {}", p,
                              plan.num_blocks, static_cast<std::int64_t>(next_block) + run.count - 1);
        next_block += run.count;
      }
    }
  if (next_block != plan.num_blocks)
    return problem_text("pipeline {}: expected the {} blocks of the model, got {}", p, plan.num_blocks,
                        next_block);
  return std::nullopt;
}

Problem problem_in_strategy(const Plan& plan, const LayerStrategy& strategy, std::int64_t num_devices,
                            const std::string& location) {
  if (strategy.tp < 1 || strategy.cp < 1 || strategy.ep < 1)
    return problem_text("{}: expected tp, cp and ep of at least 1, got tp {}, cp {}, ep {}", location,
                        strategy.tp, strategy.cp, strategy.ep);
  if (num_devices % (static_cast<std::int64_t>(strategy.tp) * strategy.cp) != 0)
    return problem_text("{}: {} devices are not divisible by tp {} x cp {}", location, num_devices,
                        strategy.tp, strategy.cp);
  if (num_devices % strategy.ep != 0)
    return problem_text("{}: ep: expected a divisor of {} (the number of devices in the stage), got {}",
                        location, num_devices, strategy.ep);
  if (strategy.cp > plan.sequence_length)
    return problem_text("{}: cp {} is larger than the {} positions of a sequence", location, strategy.cp,
                        plan.sequence_length);
  if (strategy.sequence_parallel && strategy.tp == 1)
    return problem_text("{}: sequence_parallel needs tp above 1", location);
  if (strategy.zero < 0 || strategy.zero > 3)
    return problem_text("{}: zero: expected 0, 1, 2 or 3, got {}", location, strategy.zero);
  const std::int64_t group = num_devices / strategy.tp;
  if (strategy.shard_group < 0 || (strategy.shard_group > 0 && group % strategy.shard_group != 0))
    return problem_text(
        "{}: shard_group: expected a divisor of {} (dp x cp, the number of devices with the same tensor "
        "part), got {}",
        location, group, strategy.shard_group);
  if (strategy.recompute_layers < 1 ||
      (strategy.recompute_layers > 1 && strategy.recompute != RecomputeMode::full))
    return problem_text("{}: recompute_layers: expected 1, or more if recompute is full, got {}", location,
                        strategy.recompute_layers);
  if (strategy.shard_group > 0 && strategy.zero == 0)
    return problem_text("{}: shard_group {} needs zero 1, 2 or 3", location, strategy.shard_group);
  const std::int64_t shards = strategy.zero == 0         ? 1
                              : strategy.shard_group > 0 ? strategy.shard_group
                                                         : group;
  if (plan.copy_distance > 0 && strategy.zero > 0 && plan.copy_distance % shards == 0)
    return problem_text(
        "{}: copy_distance {} puts the copy on the owner itself, given {} shards; choose another distance",
        location, plan.copy_distance, shards);
  return std::nullopt;
}

Problem problem_in_stages(const Plan& plan, int p) {
  const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(p)];
  if (pipeline.stages.empty()) return problem_text("pipeline {} has no stages", p);
  const std::size_t num_chunks = pipeline.stages.front().chunks.size();
  for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
    const Stage& stage = pipeline.stages[s];
    const std::string name = name_of(p, static_cast<int>(s));
    if (stage.devices.empty()) return problem_text("{} has no devices", name);
    if (stage.chunks.empty()) return problem_text("{} has no chunks of blocks", name);
    if (stage.chunks.size() != num_chunks)
      return problem_text("{}: expected {} chunks, as in the first stage, got {}", name, num_chunks,
                          stage.chunks.size());
  }
  if (Problem problem = problem_in_blocks(plan, p)) return problem;
  for (std::size_t s = 0; s < pipeline.stages.size(); ++s)
    for (const Chunk& chunk : pipeline.stages[s].chunks)
      for (const BlockRun& run : chunk.runs) {
        const std::string location =
            fmt::format("{}, block {}", name_of(p, static_cast<int>(s)), run.first_block);
        const auto width = static_cast<std::int64_t>(pipeline.stages[s].devices.size());
        if (Problem problem = problem_in_strategy(plan, run.strategy, width, location)) return problem;
      }
  return std::nullopt;
}

Problem problem_with_schedule(const Plan& plan) {
  for (std::size_t p = 0; p < plan.pipelines.size(); ++p) {
    const std::size_t num_chunks = plan.pipelines[p].stages.front().chunks.size();
    if (plan.schedule != Schedule::interleaved && num_chunks != 1)
      return problem_text(
          "pipeline {}: schedule {}: expected 1 chunk per stage, got {} (interleaved supports several)", p,
          text(plan.schedule), num_chunks);
    if (plan.schedule == Schedule::interleaved && num_chunks < 2)
      return problem_text("pipeline {}: schedule interleaved: expected at least 2 chunks per stage, got 1",
                          p);
  }
  if (!is_asynchronous(plan.schedule)) return std::nullopt;
  if (plan.precision == Precision::fp16)
    return problem_text("schedule {} does not support loss scaling; use a precision other than fp16",
                        text(plan.schedule));
  if (plan.precision == Precision::fp8 || !plan.fp8.blocks.empty())
    return problem_text(
        "schedule {} has no common step for exchanging fp8 amax values; use a precision other than fp8",
        text(plan.schedule));
  if (plan.copy_distance > 0)
    return problem_text("schedule {} has no common step for updating redundant copies; use copy_distance 0",
                        text(plan.schedule));
  if (plan.pipelines.size() > 1)
    return problem_text("schedule {}: expected one pipeline, got {}", text(plan.schedule),
                        plan.pipelines.size());
  for (const Stage& stage : plan.pipelines.front().stages)
    for (const BlockRun& run : stage.chunks.front().runs)
      if (run.strategy.zero > 1)
        return problem_text(
            "schedule {} stores several versions of the weights: expected zero 0 or 1, got {}",
            text(plan.schedule), run.strategy.zero);
  return std::nullopt;
}

// Custom blocks are opaque: samples can be distributed, but features and positions cannot be split.
Problem problem_with_custom(const Plan& plan, const ModelSpec& model) {
  if (plan.num_blocks != num_blocks(model))
    return problem_text("the plan is for a model with {} blocks, but {} has {}", plan.num_blocks, model.name,
                        num_blocks(model));
  if (plan.precision == Precision::fp8 || !plan.fp8.blocks.empty())
    return problem_text("fp8 applies to transformer layers, but {} has custom blocks; use bf16", model.name);
  if (plan.sequence_length != 1)
    return problem_text("the sequence length is {}, but the samples of {} have no positions; use 1",
                        plan.sequence_length, model.name);
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const Chunk& chunk : stage.chunks)
        for (const BlockRun& run : chunk.runs) {
          const LayerStrategy& s = run.strategy;
          if (s.ep != 1)
            return problem_text("block {}: ep is {}, but custom blocks have no experts; use 1",
                                run.first_block, s.ep);
          if (s.tp != 1 || s.cp != 1)
            return problem_text(
                "block {}: tp {} and cp {} cannot split the custom blocks of {}; use 1, and more "
                "data-parallel "
                "ranks",
                run.first_block, s.tp, s.cp, model.name);
          if (s.recompute == RecomputeMode::selective)
            return problem_text(
                "block {}: custom blocks do not support selective recompute; use none or full",
                run.first_block);
          if (s.recompute_layers != 1)
            return problem_text(
                "block {}: recompute_layers: expected 1 (custom blocks are recomputed one by one), got {}",
                run.first_block, s.recompute_layers);
        }
  return std::nullopt;
}

Problem problem_with_run(const Plan& plan, const BlockRun& run, const ModelSpec& model) {
  const LayerStrategy& s = run.strategy;
  const bool is_all_mixture =
      model.is_mixture() && model.mixture.first_layer == 0 && model.mixture.layer_interval == 1;
  const std::int64_t columns = is_all_mixture ? model.vocab : std::min(model.ffn, model.vocab);
  const std::int64_t max_tp = std::min(model.heads, columns);
  if (s.tp > max_tp)
    return problem_text("block {}: tp {} is more than the {} {} of {}; each device needs at least one",
                        run.first_block, s.tp, max_tp, max_tp == model.heads ? "heads" : "columns",
                        model.name);
  if (s.ep > 1 && !model.is_mixture())
    return problem_text("block {}: ep is {}, but {} is dense and has no experts; use 1", run.first_block,
                        s.ep, model.name);
  if (!model.is_mixture()) return std::nullopt;
  if (model.mixture.experts % s.ep != 0)
    return problem_text("block {}: ep: expected a divisor of the {} experts of {}, got {}", run.first_block,
                        model.mixture.experts, model.name, s.ep);
  if (s.tp > 1 && !s.sequence_parallel)
    return problem_text(
        "block {}: tp {} needs sequence_parallel in {}, whose experts process each device's own positions",
        run.first_block, s.tp, model.name);
  if (plan.copy_distance > 0 && s.zero > 0)
    return problem_text(
        "block {}: redundant copies of expert state are not supported yet; use copy_distance 0",
        run.first_block);
  return std::nullopt;
}

}  // namespace

std::optional<std::string> find_problem(const Plan& plan) {
  if (Problem problem = problem_in_numbers(plan)) return problem;
  if (Problem problem = problem_in_fp8(plan)) return problem;
  for (std::size_t p = 0; p < plan.pipelines.size(); ++p)
    if (Problem problem = problem_in_stages(plan, static_cast<int>(p))) return problem;
  if (Problem problem = problem_in_current_scales(plan)) return problem;
  if (Problem problem = problem_in_devices(plan)) return problem;
  if (Problem problem = problem_in_microbatches(plan)) return problem;
  return problem_with_schedule(plan);
}

std::optional<std::string> find_problem(const Plan& plan, const ModelSpec& model) {
  if (Problem problem = find_problem(plan)) return problem;
  if (model.is_custom()) return problem_with_custom(plan, model);
  if (plan.num_blocks != num_blocks(model))
    return problem_text("the plan is for a model with {} layers, but {} has {}; change --layers or the plan",
                        plan.num_blocks - 2, model.name, model.layers);
  if (plan.sequence_length > model.max_positions)
    return problem_text("the sequence length {} is longer than the {} positions of {}", plan.sequence_length,
                        model.max_positions, model.name);
  if (is_asynchronous(plan.schedule) && model.is_tied && plan.pipelines.front().stages.size() > 1)
    return problem_text(
        "schedule {} updates stages at different times and needs an untied embedding if first and last stage "
        "differ",
        text(plan.schedule));
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const Chunk& chunk : stage.chunks)
        for (const BlockRun& run : chunk.runs)
          if (Problem problem = problem_with_run(plan, run, model)) return problem;
  return std::nullopt;
}

void validate(const Plan& plan, const std::string& source) {
  if (const Problem problem = find_problem(plan)) throw UserError("{}: {}", source, *problem);
}

void validate(const Plan& plan, const ModelSpec& model, const std::string& source) {
  if (const Problem problem = find_problem(plan, model)) throw UserError("{}: {}", source, *problem);
}

}  // namespace optimus
