// Implements the names of enumerators, the positions of devices, and the uniform grid. Other functions on
// plans are in separate files.
#include "plan/plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "layout/layout.h"

namespace optimus {
namespace {

template <typename Enum>
struct Word {
  const char* word;
  Enum value;
};

constexpr Word<Schedule> kSchedules[] = {{"gpipe", Schedule::gpipe},
                                         {"1f1b", Schedule::one_f_one_b},
                                         {"interleaved", Schedule::interleaved},
                                         {"zero-bubble", Schedule::zero_bubble},
                                         {"pipedream", Schedule::pipedream},
                                         {"pipemare", Schedule::pipemare}};
constexpr Word<Precision> kPrecisions[] = {{"fp64", Precision::fp64},
                                           {"fp32", Precision::fp32},
                                           {"bf16", Precision::bf16},
                                           {"fp16", Precision::fp16},
                                           {"fp8", Precision::fp8}};
constexpr Word<RecomputeMode> kRecomputes[] = {
    {"none", RecomputeMode::none}, {"selective", RecomputeMode::selective}, {"full", RecomputeMode::full}};

template <typename Enum, std::size_t N>
std::string word_of(const Word<Enum> (&names)[N], Enum value) {
  for (const auto& row : names)
    if (row.value == value) return row.word;
  ensure(false, "enumerator {} has no name", static_cast<int>(value));
  return "";
}

template <typename Enum, std::size_t N>
std::vector<std::string> all_words(const Word<Enum> (&names)[N]) {
  std::vector<std::string> words;
  for (const auto& row : names) words.push_back(row.word);
  return words;
}

template <typename Enum, std::size_t N>
Enum value_of(const Word<Enum> (&names)[N], const std::string& word, const std::string& setting_name) {
  for (const auto& row : names)
    if (row.word == word) return row.value;
  const std::vector<std::string> known_names = all_words(names);
  throw UserError("{}: {} is not one of {}{}", setting_name, in_quotes(word), join(known_names, ", "),
                  did_you_mean(word, known_names));
}

}  // namespace

std::string text(Schedule schedule) { return word_of(kSchedules, schedule); }
std::string text(Fp8Scaling scaling) { return scaling == Fp8Scaling::window ? "window" : "current"; }
std::string text(Precision precision) { return word_of(kPrecisions, precision); }
std::vector<std::string> schedule_words() { return all_words(kSchedules); }
std::vector<std::string> precision_words() { return all_words(kPrecisions); }
std::vector<std::string> recompute_words() { return all_words(kRecomputes); }
Schedule parse_schedule(const std::string& word, const std::string& setting_name) {
  return value_of(kSchedules, word, setting_name);
}
Precision parse_precision(const std::string& word, const std::string& setting_name) {
  return value_of(kPrecisions, word, setting_name);
}
RecomputeMode parse_recompute(const std::string& word, const std::string& setting_name) {
  return value_of(kRecomputes, word, setting_name);
}

bool is_asynchronous(Schedule schedule) {
  return schedule == Schedule::pipedream || schedule == Schedule::pipemare;
}

int bytes_of(Precision precision) {
  switch (precision) {
    case Precision::fp64:
      return 8;
    case Precision::fp32:
      return 4;
    case Precision::bf16:
    case Precision::fp16:
    case Precision::fp8:
      return 2;
  }
  return 0;
}

int num_devices(const Plan& plan) {
  std::size_t count = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) count += stage.devices.size();
  return static_cast<int>(count);
}

bool has_device(const Plan& plan, int device) {
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      if (std::find(stage.devices.begin(), stage.devices.end(), device) != stage.devices.end()) return true;
  return false;
}

int num_device_numbers(const Plan& plan) {
  int count = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const int device : stage.devices) count = std::max(count, device + 1);
  return count;
}

int data_parallel(const Stage& stage, const LayerStrategy& strategy) {
  return static_cast<int>(stage.devices.size()) / (strategy.tp * strategy.cp);
}

int shard_count(const Stage& stage, const LayerStrategy& strategy) {
  if (strategy.zero == 0) return 1;
  return strategy.shard_group > 0 ? strategy.shard_group : data_parallel(stage, strategy) * strategy.cp;
}

int expert_shard_count(const Stage& stage, const LayerStrategy& strategy) {
  const int num_sharing_devices = shard_count(stage, strategy) * strategy.tp;
  return strategy.zero > 0 && num_sharing_devices % strategy.ep == 0 ? num_sharing_devices / strategy.ep : 1;
}

PlanLocation location_of(const Plan& plan, int device) {
  for (std::size_t p = 0; p < plan.pipelines.size(); ++p)
    for (std::size_t s = 0; s < plan.pipelines[p].stages.size(); ++s) {
      const std::vector<int>& devices = plan.pipelines[p].stages[s].devices;
      const auto match = std::find(devices.begin(), devices.end(), device);
      if (match != devices.end())
        return {static_cast<int>(p), static_cast<int>(s), static_cast<int>(match - devices.begin())};
    }
  throw UserError("device {} is not in the plan, which has {} devices", device, num_devices(plan));
}

namespace {

const BlockRun& run_of(const Stage& stage, int block) {
  for (const Chunk& chunk : stage.chunks)
    for (const BlockRun& run : chunk.runs)
      if (block >= run.first_block && block < run.first_block + run.count) return run;
  ensure(false, "block {} is not in this stage", block);
  return stage.chunks.front().runs.front();
}

}  // namespace

const LayerStrategy& strategy_of(const Stage& stage, int block) { return run_of(stage, block).strategy; }

Span recompute_group(const ModelSpec& model, const Stage& stage, int block) {
  const BlockRun& run = run_of(stage, block);
  if (run.strategy.recompute != RecomputeMode::full || block_kind(model, block) != BlockKind::layer)
    return {block, block + 1};
  const auto is_layer = [&](int b) { return block_kind(model, b) == BlockKind::layer; };
  const int first = is_layer(run.first_block) ? run.first_block : run.first_block + 1;
  int end = run.first_block + run.count;
  if (!is_layer(end - 1)) --end;
  const int size = run.strategy.recompute_layers, begin = first + (block - first) / size * size;
  return {begin, std::min(begin + size, end)};
}

namespace {

// The blocks of each of `parts` chunks. Layers are distributed evenly, with the remainder on the first
// chunks. The embedding belongs to the first chunk, the head to the last. Chunks without layers occur only if
// there are fewer layers than chunks.
std::vector<Span> split_blocks(std::int64_t layers, int parts) {
  std::vector<Span> spans = split_evenly(layers, parts);
  for (Span& span : spans) span.begin += 1, span.end += 1;
  spans.front().begin = 0;
  spans.back().end = layers + 2;
  return spans;
}

std::vector<int> split_batch(std::int64_t batch, int sequences) {
  std::vector<int> sizes(static_cast<std::size_t>(batch / sequences), sequences);
  if (batch % sequences != 0) sizes.push_back(static_cast<int>(batch % sequences));
  return sizes;
}

}  // namespace

Plan uniform_plan(const ModelSpec& model, const UniformPlan& shape) {
  const int width = shape.dp * shape.strategy.cp * shape.strategy.tp;
  const int parts = shape.pp * shape.chunks;
  const std::vector<Span> blocks =
      model.is_custom() ? split_evenly(num_blocks(model), parts) : split_blocks(model.layers, parts);
  Pipeline pipeline;
  for (int s = 0; s < shape.pp; ++s) {
    Stage stage;
    for (int i = 0; i < width; ++i) stage.devices.push_back(s * width + i);
    for (int c = 0; c < shape.chunks; ++c) {
      const Span span = blocks[static_cast<std::size_t>(c * shape.pp + s)];
      stage.chunks.push_back(
          {{{static_cast<int>(span.begin), static_cast<int>(span.size()), shape.strategy}}});
    }
    pipeline.stages.push_back(std::move(stage));
  }
  pipeline.microbatches = split_batch(shape.batch, std::max(1, shape.microbatch * shape.dp));
  Plan plan;
  plan.model = model.name;
  plan.num_blocks = num_blocks(model);
  plan.batch = shape.batch;
  plan.sequence_length = shape.sequence_length;
  plan.schedule = shape.schedule;
  plan.precision = shape.precision;
  plan.accumulators = shape.precision == Precision::fp64 ? Precision::fp64 : Precision::fp32;
  plan.pipelines.push_back(std::move(pipeline));
  return plan;
}

}  // namespace optimus
