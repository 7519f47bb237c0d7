// See describe.h.
#include "plan/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "base/units.h"
#include "plan/fp8.h"
#include "plan/plan_json.h"
#include "plan/ranges.h"

namespace optimus {
namespace {

// The smallest and largest value of a property over all runs of blocks: "tp2", "tp1..4", or "" if it always
// equals `default_value`.
template <typename Property>
std::string axis_text(const Plan& plan, const std::string& name, int default_value, Property property) {
  std::set<int> values;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const Chunk& chunk : stage.chunks)
        for (const BlockRun& run : chunk.runs) values.insert(property(stage, run.strategy));
  if (values.size() == 1 && *values.begin() == default_value) return "";
  if (values.size() == 1) return fmt::format(" {}{}", name, *values.begin());
  return fmt::format(" {}{}..{}", name, *values.begin(), *values.rbegin());
}

std::string strategy_text(const Stage& stage, const LayerStrategy& s) {
  std::string result;
  const auto add = [&](const std::string& part) { result += (result.empty() ? "" : " ") + part; };
  if (s.tp > 1) add(fmt::format("tp{}", s.tp));
  if (s.sequence_parallel) add("sp");
  if (s.cp > 1) add(fmt::format("cp{}", s.cp));
  if (const int dp = data_parallel(stage, s); dp > 1) add(fmt::format("dp{}", dp));
  if (s.ep > 1) add(fmt::format("ep{}", s.ep));
  if (s.zero > 0) add(fmt::format("zero{}", s.zero));
  if (s.shard_group > 0) add(fmt::format("shard{}", s.shard_group));
  if (s.recompute != RecomputeMode::none) add("recompute-" + text(s.recompute));
  if (s.recompute_layers > 1) add(fmt::format("by{}", s.recompute_layers));
  if (s.offload) add("offload");
  return result.empty() ? "one device" : result;
}

std::string block_text(const Plan& plan, int first, int count) {
  std::vector<std::string> parts;
  int last = first + count - 1;
  if (first == 0) parts.push_back("embedding"), ++first;
  const bool has_head = last == plan.num_blocks - 1;
  if (has_head) --last;
  // In displayed text, layers are numbered from 0, without the embedding.
  if (first == last) parts.push_back(fmt::format("layer {}", first - 1));
  if (first < last) parts.push_back(fmt::format("layers {}–{}", first - 1, last - 1));
  if (has_head) parts.push_back("head");
  return join(parts, ", ");
}

std::string microbatch_text(const std::vector<int>& sizes) {
  const auto [smallest, largest] = std::minmax_element(sizes.begin(), sizes.end());
  if (*smallest == *largest) return fmt::format("{} micro-batches of {}", sizes.size(), *largest);
  return fmt::format("{} micro-batches of {} to {}", sizes.size(), *smallest, *largest);
}

// A bar that represents the model's blocks, at most 64 columns wide. It marks the blocks of the stage.
std::string depth_bar(const Plan& plan, const Stage& stage) {
  const int columns = std::min(plan.num_blocks, 64);
  std::string bar;
  for (int column = 0; column < columns; ++column) {
    const int begin = static_cast<int>(static_cast<std::int64_t>(column) * plan.num_blocks / columns);
    const int end = std::max(
        begin + 1, static_cast<int>(static_cast<std::int64_t>(column + 1) * plan.num_blocks / columns));
    const bool has_block = std::any_of(stage.chunks.begin(), stage.chunks.end(), [&](const Chunk& chunk) {
      return chunk.first_block() < end && chunk.end_block() > begin;
    });
    bar += has_block ? "█" : "·";
  }
  return bar;
}

}  // namespace

std::string short_text(const Plan& plan) {
  std::vector<std::string> depths;
  for (const Pipeline& pipeline : plan.pipelines)
    depths.push_back(fmt::format("pp{}", pipeline.stages.size()));
  if (std::set<std::string>(depths.begin(), depths.end()).size() == 1 && depths.size() > 1)
    depths = {fmt::format("{}x{}", depths.size(), depths.front())};
  std::string result = depths == std::vector<std::string>{"pp1"} ? "" : " " + join(depths, "+");
  result += axis_text(plan, "tp", 1, [](const Stage&, const LayerStrategy& s) { return s.tp; });
  result += axis_text(plan, "sp", 0,
                      [](const Stage&, const LayerStrategy& s) { return s.sequence_parallel ? 1 : 0; });
  result += axis_text(plan, "cp", 1, [](const Stage&, const LayerStrategy& s) { return s.cp; });
  result += axis_text(plan, "dp", 1,
                      [](const Stage& stage, const LayerStrategy& s) { return data_parallel(stage, s); });
  result += axis_text(plan, "ep", 1, [](const Stage&, const LayerStrategy& s) { return s.ep; });
  result += axis_text(plan, "zero", 0, [](const Stage&, const LayerStrategy& s) { return s.zero; });
  if (plan.copy_distance > 0)
    result += plan.copy_distance == 1 ? " +copy" : fmt::format(" +copy{}", plan.copy_distance);
  const bool is_pipelined = std::any_of(plan.pipelines.begin(), plan.pipelines.end(),
                                        [](const Pipeline& p) { return p.stages.size() > 1; });
  if (is_pipelined) result += " " + text(plan.schedule);
  if (const auto chunks = plan.pipelines.front().stages.front().chunks.size(); chunks > 1)
    result += fmt::format(" v{}", chunks);
  return result.empty() ? "one device" : result.substr(1);
}

std::string full_text(const Plan& plan) {
  const Stage& first_stage = plan.pipelines.front().stages.front();
  const LayerStrategy& first = first_stage.chunks.front().runs.front().strategy;
  const int dp = data_parallel(first_stage, first);
  std::string name = fmt::format("{}, micro-batch {}", short_text(plan),
                                 std::max(1, (plan.pipelines.front().microbatches.front() + dp - 1) / dp));
  bool is_mixed = false;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const Chunk& chunk : stage.chunks)
        for (const BlockRun& run : chunk.runs) is_mixed |= run.strategy.recompute != first.recompute;
  if (is_mixed)
    name += ", recompute as needed";
  else if (first.recompute != RecomputeMode::none)
    name += ", recompute " + text(first.recompute);
  return name;
}

std::string picture(const Plan& plan) {
  std::string result = fmt::format("{}  (plan {}, {} devices)\n", short_text(plan),
                                   plan_hash(plan).substr(0, 4), num_devices(plan));
  const std::string size = plan.num_blocks > 2 ? fmt::format("{} layers", plan.num_blocks - 2)
                                               : fmt::format("{} blocks", plan.num_blocks);
  result += fmt::format("{}: {}, batch {} x {} tokens, {}, accumulators {}\n",
                        plan.model.empty() ? "model" : plan.model, size, plan.batch, plan.sequence_length,
                        text(plan.precision), text(plan.accumulators));
  if (has_fp8(plan)) result += fmt::format("fp8 GEMMs: {}\n", fp8_text(plan));
  for (std::size_t p = 0; p < plan.pipelines.size(); ++p) {
    const Pipeline& pipeline = plan.pipelines[p];
    result += fmt::format("\npipeline {}: {}\n", p, microbatch_text(pipeline.microbatches));
    for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
      const Stage& stage = pipeline.stages[s];
      result += fmt::format("  stage {:<3} {}  devices {}\n", s, depth_bar(plan, stage),
                            ranges_text(stage.devices));
      for (const Chunk& chunk : stage.chunks)
        for (const BlockRun& run : chunk.runs)
          result += fmt::format("            {}: {}\n", block_text(plan, run.first_block, run.count),
                                strategy_text(stage, run.strategy));
    }
  }
  return result;
}

std::vector<std::string> difference(const Plan& a, const Plan& b) {
  std::vector<std::string> result;
  const auto add_change = [&](const std::string& property, const std::string& from, const std::string& to) {
    if (from != to) result.push_back(fmt::format("{}: {} → {}", property, from, to));
  };
  add_change("model", a.model, b.model);
  add_change("blocks", std::to_string(a.num_blocks), std::to_string(b.num_blocks));
  add_change("layout", short_text(a), short_text(b));
  add_change("batch", std::to_string(a.batch), std::to_string(b.batch));
  add_change("sequence length", std::to_string(a.sequence_length), std::to_string(b.sequence_length));
  add_change("schedule", text(a.schedule), text(b.schedule));
  add_change("precision", text(a.precision), text(b.precision));
  add_change("accumulators", text(a.accumulators), text(b.accumulators));
  const auto fp8 = [](const Plan& plan) {
    return fmt::format("{}, window {}{}",
                       plan.fp8.blocks.empty() ? "default layers" : ranges_text(plan.fp8.blocks),
                       plan.fp8.window, scaling_text(plan.fp8.scaling));
  };
  add_change("fp8", fp8(a), fp8(b));
  add_change("copy distance", std::to_string(a.copy_distance), std::to_string(b.copy_distance));
  add_change("devices", std::to_string(num_devices(a)), std::to_string(num_devices(b)));
  add_change("pipelines", std::to_string(a.pipelines.size()), std::to_string(b.pipelines.size()));
  for (std::size_t p = 0; p < std::min(a.pipelines.size(), b.pipelines.size()); ++p) {
    const Pipeline &from = a.pipelines[p], &to = b.pipelines[p];
    const std::string name = fmt::format("pipeline {}", p);
    add_change(name, fmt::format("{} stages", from.stages.size()),
               fmt::format("{} stages", to.stages.size()));
    if (from.microbatches != to.microbatches)
      result.push_back(fmt::format("{} micro-batches: {} → {}{}", name, microbatch_text(from.microbatches),
                                   microbatch_text(to.microbatches),
                                   microbatch_text(from.microbatches) == microbatch_text(to.microbatches)
                                       ? " (the same sizes in a different order or in different numbers)"
                                       : ""));
    for (std::size_t s = 0; s < std::min(from.stages.size(), to.stages.size()); ++s) {
      const std::string stage = fmt::format("{}, stage {}", name, s);
      add_change(stage + " devices", ranges_text(from.stages[s].devices), ranges_text(to.stages[s].devices));
      const auto layers = [](const Plan& plan, const Stage& shown_stage) {
        std::vector<std::string> parts;
        for (std::size_t c = 0; c < shown_stage.chunks.size(); ++c)
          for (const BlockRun& run : shown_stage.chunks[c].runs)
            parts.push_back((shown_stage.chunks.size() > 1 ? fmt::format("chunk {}: ", c) : "") +
                            fmt::format("{} ({})", block_text(plan, run.first_block, run.count),
                                        strategy_text(shown_stage, run.strategy)));
        return join(parts, "; ");
      };
      add_change(stage, layers(a, from.stages[s]), layers(b, to.stages[s]));
    }
  }
  const auto describe_unmatched = [&](const Plan& plan, std::size_t common, const std::string& word) {
    for (std::size_t p = common; p < plan.pipelines.size(); ++p)
      result.push_back(fmt::format("pipeline {} {}: {} stages, {}", p, word, plan.pipelines[p].stages.size(),
                                   microbatch_text(plan.pipelines[p].microbatches)));
  };
  const std::size_t common = std::min(a.pipelines.size(), b.pipelines.size());
  describe_unmatched(a, common, "removed");
  describe_unmatched(b, common, "added");
  return result;
}

}  // namespace optimus
