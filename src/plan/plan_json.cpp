// Implements plan_json.h. The functions that write and read each element are next to each other, in the order
// of the file.
#include "plan/plan_json.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/text.h"
#include "plan/ranges.h"
#include "plan/validate.h"

namespace optimus {
namespace {

OrderedJson strategy_json(const BlockRun& run) {
  const LayerStrategy& s = run.strategy;
  OrderedJson json;
  json["blocks"] = run.count == 1 ? std::to_string(run.first_block)
                                  : fmt::format("{}..{}", run.first_block, run.first_block + run.count - 1);
  if (s.tp != 1) json["tp"] = s.tp;
  if (s.sequence_parallel) json["sequence_parallel"] = true;
  if (s.cp != 1) json["cp"] = s.cp;
  if (s.ep != 1) json["ep"] = s.ep;
  if (s.zero != 0) json["zero"] = s.zero;
  if (s.shard_group != 0) json["shard_group"] = s.shard_group;
  if (s.recompute != RecomputeMode::none) json["recompute"] = text(s.recompute);
  if (s.recompute_layers != 1) json["recompute_layers"] = s.recompute_layers;
  if (s.offload) json["offload"] = true;
  return json;
}

int small_integer(const JsonView& object, std::string_view key, int default_value) {
  const auto member = object.find(key);
  return member ? static_cast<int>(member->integer(0, kMaxPlanDevices)) : default_value;
}

BlockRun parse_run(const JsonView& json) {
  static const std::vector<std::string> keys = {
      "blocks",      "tp",        "sequence_parallel", "cp",     "ep", "zero",
      "shard_group", "recompute", "recompute_layers",  "offload"};
  json.allow_only(keys);
  BlockRun run;
  const JsonView blocks = json.at("blocks");
  const std::vector<int> numbers = parse_ranges(blocks.text(), blocks.location());
  run.first_block = numbers.front(), run.count = static_cast<int>(numbers.size());
  for (int i = 0; i < run.count; ++i)
    if (numbers[static_cast<std::size_t>(i)] != run.first_block + i)
      blocks.refuse("one range of consecutive blocks, such as 0..7");
  LayerStrategy& s = run.strategy;
  s.tp = small_integer(json, "tp", 1);
  s.sequence_parallel = json.boolean_or("sequence_parallel", false);
  s.cp = small_integer(json, "cp", 1);
  s.ep = small_integer(json, "ep", 1);
  s.zero = small_integer(json, "zero", 0);
  s.shard_group = small_integer(json, "shard_group", 0);
  if (const auto mode = json.find("recompute")) s.recompute = parse_recompute(mode->text(), mode->location());
  s.recompute_layers = small_integer(json, "recompute_layers", 1);
  s.offload = json.boolean_or("offload", false);
  return run;
}

// A stage with one chunk has "layers": [runs]; with several chunks, "chunks": [[runs], …].
OrderedJson runs_json(const Chunk& chunk) {
  OrderedJson json = OrderedJson::array();
  for (const BlockRun& run : chunk.runs) json.push_back(strategy_json(run));
  return json;
}

Chunk parse_chunk(const JsonView& json) {
  Chunk chunk;
  for (const JsonView& run : json.elements()) chunk.runs.push_back(parse_run(run));
  return chunk;
}

OrderedJson stage_json(const Stage& stage) {
  OrderedJson json;
  json["devices"] = ranges_text(stage.devices);
  if (stage.chunks.size() == 1) {
    json["layers"] = runs_json(stage.chunks.front());
  } else {
    json["chunks"] = OrderedJson::array();
    for (const Chunk& chunk : stage.chunks) json["chunks"].push_back(runs_json(chunk));
  }
  return json;
}

Stage parse_stage(const JsonView& json) {
  static const std::vector<std::string> keys = {"devices", "layers", "chunks"};
  json.allow_only(keys);
  Stage stage;
  stage.devices = parse_ranges(json.at("devices").text(), json.at("devices").location());
  if (json.find("layers") && json.find("chunks"))
    json.refuse("a stage with either layers or chunks, not both");
  if (const auto chunks = json.find("chunks"))
    for (const JsonView& chunk : chunks->elements()) stage.chunks.push_back(parse_chunk(chunk));
  else
    stage.chunks.push_back(parse_chunk(json.at("layers")));
  return stage;
}

OrderedJson microbatches_json(const std::vector<int>& sizes) {
  OrderedJson json = OrderedJson::array();
  for (std::size_t i = 0; i < sizes.size();) {
    std::size_t end = i;
    while (end < sizes.size() && sizes[end] == sizes[i]) ++end;
    json.push_back({{"count", end - i}, {"sequences", sizes[i]}});
    i = end;
  }
  return json;
}

std::vector<int> parse_microbatches(const JsonView& json) {
  static const std::vector<std::string> keys = {"count", "sequences"};
  std::vector<int> sizes;
  for (const JsonView& entry : json.elements()) {
    entry.allow_only(keys);
    const auto count = entry.at("count").integer(1, kMaxMicrobatches - std::ssize(sizes));
    const auto sequences = static_cast<int>(entry.at("sequences").integer(1, 1'000'000'000));
    sizes.insert(sizes.end(), static_cast<std::size_t>(count), sequences);
  }
  return sizes;
}

Pipeline parse_pipeline(const JsonView& json) {
  static const std::vector<std::string> keys = {"microbatches", "stages"};
  json.allow_only(keys);
  Pipeline pipeline;
  pipeline.microbatches = parse_microbatches(json.at("microbatches"));
  std::size_t devices = 0;
  for (const JsonView& stage : json.at("stages").elements()) {
    pipeline.stages.push_back(parse_stage(stage));
    // Many stages of a million devices each would exhaust memory before the check for duplicates.
    if ((devices += pipeline.stages.back().devices.size()) > kMaxPlanDevices)
      json.refuse("a pipeline of at most 1000000 devices");
  }
  return pipeline;
}

OrderedJson fp8_json(const Fp8Plan& fp8) {
  OrderedJson json;
  if (!fp8.blocks.empty()) json["blocks"] = ranges_text(fp8.blocks);
  json["window"] = fp8.window;
  if (fp8.scaling != Fp8Scaling::window) json["scales"] = text(fp8.scaling);
  return json;
}

Fp8Plan parse_fp8(const JsonView& json) {
  static const std::vector<std::string> keys = {"blocks", "window", "scales"};
  json.allow_only(keys);
  Fp8Plan fp8;
  if (const auto blocks = json.find("blocks")) fp8.blocks = parse_ranges(blocks->text(), blocks->location());
  fp8.window = small_integer(json, "window", fp8.window);
  if (const auto word = json.find("scales")) {
    if (word->text() != text(Fp8Scaling::window) && word->text() != text(Fp8Scaling::current))
      word->refuse("\"window\" or \"current\"");
    if (word->text() == text(Fp8Scaling::current)) fp8.scaling = Fp8Scaling::current;
  }
  return fp8;
}

// "buddy" is the name of the key in version 1. Files of either version may use either name.
int parse_copy_distance(const JsonView& json) {
  if (json.find("copy_distance") && json.find("buddy"))
    throw UserError("{}: buddy is the old name of copy_distance; remove one of them", json.location());
  return small_integer(json, json.find("buddy") ? "buddy" : "copy_distance", 0);
}

Plan plan_from(const JsonView& json) {
  static const std::vector<std::string> keys = {
      "format",    "version",      "model",         "blocks", "batch", "sequence_length", "schedule",
      "precision", "accumulators", "copy_distance", "buddy",  "fp8",   "pipelines"};
  if (json.at("format").text() != "optimus-plan") json.at("format").refuse("\"optimus-plan\"");
  const auto version = json.at("version").integer();
  if (version < 1 || version > kPlanVersion)
    throw UserError("{}: unsupported version {}; this program reads versions 1 to {}", json.location(),
                    version, kPlanVersion);
  json.allow_only(keys);
  Plan plan;
  plan.model = json.text_or("model", "");
  plan.num_blocks = static_cast<int>(json.at("blocks").integer(1, 1'000'000));
  plan.batch = json.at("batch").integer(1, 1'000'000'000'000);
  plan.sequence_length = json.at("sequence_length").integer(1, 1'000'000'000'000);
  plan.schedule = parse_schedule(json.at("schedule").text(), json.at("schedule").location());
  plan.precision = parse_precision(json.at("precision").text(), json.at("precision").location());
  plan.accumulators = plan.precision == Precision::fp64 ? Precision::fp64 : Precision::fp32;
  if (const auto word = json.find("accumulators"))
    plan.accumulators = parse_precision(word->text(), word->location());
  plan.copy_distance = parse_copy_distance(json);
  if (const auto fp8 = json.find("fp8")) plan.fp8 = parse_fp8(*fp8);
  std::size_t microbatches = 0, devices = 0;
  for (const JsonView& pipeline : json.at("pipelines").elements()) {
    plan.pipelines.push_back(parse_pipeline(pipeline));
    microbatches += plan.pipelines.back().microbatches.size();
    for (const Stage& stage : plan.pipelines.back().stages) devices += stage.devices.size();
    if (microbatches > kMaxMicrobatches) pipeline.refuse("a plan of at most 10000000 micro-batches in total");
    if (devices > kMaxPlanDevices) pipeline.refuse("a plan of at most 1000000 devices in total");
  }
  return plan;
}

OrderedJson json_in_version(const Plan& plan, int version) {
  OrderedJson json = {{"format", "optimus-plan"}, {"version", version}, {"model", plan.model}};
  json["blocks"] = plan.num_blocks;
  json["batch"] = plan.batch;
  json["sequence_length"] = plan.sequence_length;
  json["schedule"] = text(plan.schedule);
  json["precision"] = text(plan.precision);
  json["accumulators"] = text(plan.accumulators);
  if (plan.copy_distance != 0) json[version == 1 ? "buddy" : "copy_distance"] = plan.copy_distance;
  if (plan.fp8 != Fp8Plan{}) json["fp8"] = fp8_json(plan.fp8);
  json["pipelines"] = OrderedJson::array();
  for (const Pipeline& pipeline : plan.pipelines) {
    OrderedJson stages = OrderedJson::array();
    for (const Stage& stage : pipeline.stages) stages.push_back(stage_json(stage));
    json["pipelines"].push_back(
        {{"microbatches", microbatches_json(pipeline.microbatches)}, {"stages", stages}});
  }
  return json;
}

}  // namespace

// Plans without redundant copies are the same in both versions. They are written as version 1, so that
// programs that only support version 1 can read them.
OrderedJson to_json(const Plan& plan) {
  return json_in_version(plan, plan.copy_distance == 0 ? 1 : kPlanVersion);
}

std::string plan_text(const Plan& plan) { return to_json(plan).dump(2) + "\n"; }

Plan parse_plan(std::string_view text, const std::string& source) {
  const Json document = parse_json(text, source);
  Plan plan = plan_from(JsonView(document, source));
  validate(plan, source);
  return plan;
}

Plan read_plan(const Path& path) { return parse_plan(read_input_file(path, Bytes(1 << 28)), path.string()); }

std::string plan_hash(const Plan& plan) {
  OrderedJson json = json_in_version(plan, 1);
  json.erase("model");
  const std::string content = json.dump();
  return fmt::format("{:016x}", XXH3_64bits(content.data(), content.size()));
}

}  // namespace optimus
