// torchtitan exporter. torchtitan's configuration changed from a TOML file (up to version 0.2) to a Python
// function (version 0.3). Both files are generated from one list of settings, and the launch script selects
// the file for the installed version.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "plan/export_grid.h"

namespace optimus {
namespace {

// The models that torchtitan supports by name. It has no flags for other dimensions.
struct Flavor {
  Family family;
  std::int64_t layers, hidden, heads, kv_heads, ffn, vocab;
  bool is_tied;
  const char* name;
  bool is_in_version_0_2;  // also available in version 0.2
};

// clang-format off
constexpr Flavor kFlavors[] = {
  {Family::llama, 16,  2048,  32, 8,  8192, 128256, true,  "1B",   false},
  {Family::llama, 28,  3072,  24, 8,  8192, 128256, true,  "3B",   false},
  {Family::llama, 32,  4096,  32, 8, 14336, 128256, false, "8B",   true},
  {Family::llama, 80,  8192,  64, 8, 28672, 128256, false, "70B",  true},
  {Family::llama, 126, 16384, 128, 8, 53248, 128256, false, "405B", true},
  {Family::qwen3, 28,  1024,  16, 8,  3072, 151936, true,  "0.6B", true},
  {Family::qwen3, 28,  2048,  16, 8,  6144, 151936, true,  "1.7B", true},
  {Family::qwen3, 36,  2560,  32, 8,  9728, 151936, true,  "4B",   true},
  {Family::qwen3, 36,  4096,  32, 8, 12288, 151936, false, "8B",   true},
  {Family::qwen3, 40,  5120,  40, 8, 17408, 151936, false, "14B",  true},
  {Family::qwen3, 64,  5120,  64, 8, 25600, 151936, false, "32B",  true},
};
// clang-format on

const Flavor& flavor_of(const ModelSpec& model) {
  std::vector<std::string> flavors;
  for (const Flavor& f : kFlavors) {
    if (f.family == model.family && f.layers == model.layers && f.hidden == model.hidden &&
        f.heads == model.heads && f.kv_heads == model.kv_heads && f.ffn == model.ffn &&
        f.vocab == model.vocab && f.is_tied == model.is_tied)
      return f;
    flavors.push_back(fmt::format("{} {}", f.family == Family::llama ? "llama3" : "qwen3", f.name));
  }
  throw UserError(
      "torchtitan selects models by name, and none of its models has the shape of {}; available: {}",
      model.name, join(flavors, ", "));
}

// One setting of the configuration in both versions: section, key, value.
struct Setting {
  std::string section, key;
  Json value;
};
using Settings = std::vector<Setting>;

void check_torchtitan(const Plan& plan, const ModelSpec& model, const PlanGrid& grid) {
  const LayerStrategy& s = grid.strategy;
  if (plan.precision == Precision::fp64 || plan.precision == Precision::fp16)
    throw UserError("torchtitan computes in bf16, fp32 or fp8, not in {}", text(plan.precision));
  if (model.heads % s.tp != 0 || model.kv_heads % s.tp != 0)
    throw UserError("torchtitan needs tp {} to divide the {} heads and {} key/value heads", s.tp, model.heads,
                    model.kv_heads);
  const std::int64_t divisor = std::int64_t{s.tp} * (s.cp > 1 ? 2 * s.cp : 1);
  if (plan.sequence_length % divisor != 0)
    throw UserError("torchtitan needs the sequence length {} to be divisible by tp {}{}",
                    plan.sequence_length, s.tp, s.cp > 1 ? fmt::format(" x 2 x cp {}", s.cp) : "");
  // PyTorch's interleaved schedule runs in rounds, which must have equal numbers of micro-batches.
  const std::int64_t rounds = std::max<std::int64_t>(1, grid.num_microbatches / grid.pp);
  if (grid.chunks > 1 && grid.num_microbatches % rounds != 0)
    throw UserError(
        "torchtitan interleaves rounds of equal size; {} micro-batches do not divide into {} rounds for {} "
        "stages",
        grid.num_microbatches, rounds, grid.pp);
}

// The schedule by its name in torchtitan, and the blocks of each chunk under this schedule.
struct TitanPipeline {
  std::string schedule;
  std::vector<Span> parts;
};

TitanPipeline titan_pipeline(const Plan& plan, const ModelSpec& model, const PlanGrid& grid,
                             std::vector<std::string>& notes) {
  const auto one_f_one_b = [&]() -> TitanPipeline {
    if (grid.num_microbatches >= grid.pp) return {"1F1B", grid.parts};
    notes.emplace_back(
        "torchtitan's 1F1B needs at least as many micro-batches as stages; GPipe is used instead, which is "
        "equivalent here");
    return {"GPipe", grid.parts};
  };
  switch (plan.schedule) {
    case Schedule::gpipe:
      return {"GPipe", grid.parts};
    case Schedule::interleaved:
      return {"Interleaved1F1B", grid.parts};
    case Schedule::zero_bubble: {
      if (model.layers < 2 * grid.pp) {
        notes.emplace_back(
            "torchtitan's zero-bubble schedule needs two layers per stage; 1F1B is used instead");
        return one_f_one_b();
      }
      notes.emplace_back("torchtitan's zero-bubble schedule is V-shaped: each stage has two chunks");
      std::vector<Span> parts;
      const Plan halves = uniform_plan(model, {.pp = grid.pp, .chunks = 2});
      for (std::size_t c = 0; c < 2; ++c)
        for (const Stage& stage : halves.pipelines.front().stages)
          parts.push_back({stage.chunks[c].first_block(), stage.chunks[c].end_block()});
      return {"ZBVZeroBubble", parts};
    }
    case Schedule::one_f_one_b:
    case Schedule::pipedream:
    case Schedule::pipemare:
      return one_f_one_b();
  }
  return {};
}

Json module_names(const std::vector<Span>& parts, int num_blocks, const char* head) {
  Json names = Json::array();
  for (const Span& part : parts) {
    Json modules = Json::array();
    for (std::int64_t block = part.begin; block < part.end; ++block) {
      if (block == 0) modules.push_back("tok_embeddings");
      if (block > 0 && block < num_blocks - 1) modules.push_back(fmt::format("layers.{}", block - 1));
      if (block == num_blocks - 1) modules.push_back("norm"), modules.push_back(head);
    }
    names.push_back(modules);
  }
  return names;
}

void add_data_parallel(const PlanGrid& grid, Settings& settings, std::vector<std::string>& notes) {
  const LayerStrategy& s = grid.strategy;
  int shard = s.zero == 0 ? 1 : std::max(1, grid.shards / s.cp);
  const bool is_data_parallel_only = s.tp == 1 && s.cp == 1 && grid.pp == 1;
  if (s.zero == 0 && grid.dp > 1 && !is_data_parallel_only) {
    shard = grid.dp;
    notes.emplace_back(
        "torchtitan supports unsharded state only without other parallelism; the state is sharded (and not "
        "resharded after the forward)");
  } else if (s.zero > 0 && shard * s.cp != grid.shards) {
    notes.push_back(
        fmt::format("torchtitan also shards over cp: the shard groups have {} devices instead of {}",
                    shard * s.cp, grid.shards));
  }
  while (grid.dp % shard != 0) --shard;
  settings.push_back({"parallelism", "data_parallel_replicate_degree", grid.dp / shard});
  settings.push_back({"parallelism", "data_parallel_shard_degree", shard});
  settings.push_back({"parallelism", "fsdp_reshard_after_forward", s.zero == 3 ? "always" : "never"});
  if (s.zero == 1) notes.emplace_back("torchtitan shards gradients together with the optimizer (zero 2)");
}

Settings common_settings(const Plan& plan, const PlanGrid& grid, const ExportSettings& export_settings,
                         std::vector<std::string>& notes) {
  const LayerStrategy& s = grid.strategy;
  Settings settings;
  const std::int64_t local_batch = grid.pp > 1 ? grid.microbatch * grid.num_microbatches : grid.microbatch;
  settings.push_back({"training", "local_batch_size", local_batch});
  settings.push_back({"training", "global_batch_size", plan.batch});
  settings.push_back({"training", "seq_len", plan.sequence_length});
  settings.push_back({"training", "steps", export_settings.steps});
  settings.push_back({"training", "max_norm", export_settings.clip});
  settings.push_back(
      {"training", "mixed_precision_param", plan.precision == Precision::fp32 ? "float32" : "bfloat16"});
  settings.push_back({"training", "enable_cpu_offload", s.offload});
  if (s.offload) notes.emplace_back("torchtitan offloads parameters and gradients with the optimizer");
  if (plan.accumulators == Precision::bf16)
    notes.emplace_back("torchtitan reduces gradients in fp32, not in bf16");
  settings.push_back(
      {"lr_scheduler", "warmup_steps", std::min(export_settings.warmup, export_settings.steps / 2)});
  settings.push_back({"lr_scheduler", "decay_type", "cosine"});
  settings.push_back({"lr_scheduler", "min_lr_factor", 0.1});
  settings.push_back({"debug", "seed", export_settings.seed});
  add_data_parallel(grid, settings, notes);
  settings.push_back({"parallelism", "tensor_parallel_degree", s.tp});
  settings.push_back({"parallelism", "context_parallel_degree", s.cp});
  settings.push_back({"parallelism", "pipeline_parallel_degree", grid.pp});
  if (s.ep > 1) settings.push_back({"parallelism", "expert_parallel_degree", s.ep});
  if (grid.pp > 1) settings.push_back({"parallelism", "pipeline_parallel_microbatch_size", grid.microbatch});
  return settings;
}

void note_recompute(const PlanGrid& grid, std::vector<std::string>& notes) {
  const LayerStrategy& s = grid.strategy;
  if (s.recompute == RecomputeMode::selective)
    notes.emplace_back(
        "torchtitan's selective recompute uses its own list of saved operations: GEMMs and attention");
  if (s.recompute == RecomputeMode::full && s.recompute_layers > 1)
    notes.push_back(
        fmt::format("torchtitan saves the input of every layer, not of every {} layers", s.recompute_layers));
  if (grid.recomputed_layers > 0)
    notes.emplace_back("torchtitan recomputes either all layers or none; the export recomputes all");
}

// File names may contain arbitrary bytes.
std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string toml_text(const Settings& settings) {
  std::string lines, section;
  for (const Setting& setting : settings) {
    if (setting.section != section) lines += fmt::format("\n[{}]\n", section = setting.section);
    lines += fmt::format("{} = {}\n", setting.key, json_text(setting.value));
  }
  return lines;
}

std::string python_value(const Json& value) {
  return value.is_boolean() ? (value.get<bool>() ? "True" : "False") : json_text(value);
}

// Writes the configuration file of version 0.2.
std::string toml_file(const Plan& plan, const Flavor& flavor, const PlanGrid& grid,
                      const ExportSettings& export_settings, const Settings& common,
                      const TitanPipeline& pipeline, const std::vector<std::string>& notes) {
  Settings settings = {{"model", "name", flavor.family == Family::llama ? "llama3" : "qwen3"},
                       {"model", "flavor", flavor.name}};
  if (!export_settings.tokenizer.empty())
    settings.push_back({"model", "hf_assets_path", export_settings.tokenizer});
  if (plan.precision == Precision::fp8) settings.push_back({"model", "converters", Json::array({"float8"})});
  settings.push_back({"optimizer", "name", "AdamW"});
  settings.push_back({"optimizer", "lr", export_settings.learning_rate});
  settings.push_back({"optimizer", "beta1", export_settings.beta1});
  settings.push_back({"optimizer", "beta2", export_settings.beta2});
  settings.push_back({"optimizer", "weight_decay", export_settings.weight_decay});
  settings.push_back({"activation_checkpoint", "mode", text(grid.strategy.recompute)});
  if (grid.strategy.recompute == RecomputeMode::selective)
    settings.push_back({"activation_checkpoint", "selective_ac_option", "op"});
  if (!export_settings.data.empty()) settings.push_back({"training", "dataset_path", export_settings.data});
  for (const Setting& setting : common) settings.push_back(setting);
  if (grid.pp > 1) {
    settings.push_back({"parallelism", "pipeline_parallel_schedule", pipeline.schedule});
    settings.push_back({"parallelism", "module_fqns_per_model_part",
                        module_names(pipeline.parts, plan.num_blocks, "output")});
  }
  return export_header(plan, "torchtitan 0.2: " + in_quotes(plan.model), notes) + toml_text(settings);
}

// Writes the configuration of version 0.3: a function that modifies one of torchtitan's own configurations
// according to the plan.
std::string python_file(const Plan& plan, const Flavor& flavor, const PlanGrid& grid,
                        const ExportSettings& export_settings, const Settings& common,
                        const TitanPipeline& pipeline, const std::vector<std::string>& notes) {
  const bool is_llama = flavor.family == Family::llama;
  const std::string module = is_llama ? "llama3" : "qwen3", base = is_llama ? "llama3_8b" : "qwen3_14b";
  std::string py = export_header(plan, "torchtitan 0.3: " + in_quotes(plan.model), notes);
  py += "from torchtitan.components.optimizer import default_adamw\n";
  if (plan.precision == Precision::fp8)
    py += "from torchtitan.components.quantization import Float8LinearConverter\n";
  py += "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC\n";
  py += fmt::format("from torchtitan.models.{} import model_registry\n", module);
  py += fmt::format("from torchtitan.models.{}.config_registry import {}\n\n\n", module, base);
  py += fmt::format("def optimus_plan():\n    config = {}()\n", base);
  py += plan.precision == Precision::fp8
            ? fmt::format(
                  "    fp8 = [Float8LinearConverter.Config(filter_fqns=[\"lm_head\"], "
                  "model_compile_enabled=False)]\n    config.model_spec = model_registry(\"{}\", "
                  "converters=fp8)\n",
                  flavor.name)
            : fmt::format("    config.model_spec = model_registry(\"{}\")\n", flavor.name);
  py += fmt::format("    config.optimizer = default_adamw(lr={}, betas=({}, {}), weight_decay={})\n",
                    export_settings.learning_rate, export_settings.beta1, export_settings.beta2,
                    export_settings.weight_decay);
  if (!export_settings.tokenizer.empty())
    py += fmt::format("    config.hf_assets_path = {}\n", json_text(export_settings.tokenizer));
  if (!export_settings.data.empty())
    py += fmt::format("    config.dataloader.dataset_path = {}\n", json_text(export_settings.data));
  const char* const recompute[] = {"None", "SelectiveAC.Config()", "FullAC.Config()"};
  py += fmt::format("    config.activation_checkpoint = {}\n",
                    recompute[static_cast<int>(grid.strategy.recompute)]);
  for (const Setting& setting : common)
    py += fmt::format("    config.{}.{} = {}\n", setting.section, setting.key, python_value(setting.value));
  if (grid.strategy.tp > 1)
    py += fmt::format("    config.parallelism.enable_sequence_parallel = {}\n",
                      python_value(grid.strategy.sequence_parallel));
  if (grid.pp > 1) {
    py += fmt::format("    config.parallelism.pipeline_parallel_schedule = \"{}\"\n", pipeline.schedule);
    py += fmt::format("    config.parallelism.module_fqns_per_model_part = {}\n",
                      module_names(pipeline.parts, plan.num_blocks, "lm_head").dump());
  }
  return py + "    return config\n";
}

std::string titan_launch(const Plan& plan, const NodeShape& nodes, bool has_toml,
                         const std::vector<std::string>& notes) {
  std::string script = "#!/usr/bin/env bash\n";
  script += export_header(plan, "torchtitan training of " + in_quotes(plan.model), notes);
  script +=
      "# Run this script on every node, in a folder with torchtitan's assets; set MASTER_ADDR to the first "
      "node.\nset -euo pipefail\nHERE=$(cd \"$(dirname \"$0\")\" && "
      "pwd)\nMASTER_ADDR=${MASTER_ADDR:-localhost}\nMASTER_PORT=${MASTER_PORT:-29500}\nVERSION=$(python3 -c "
      "'import importlib.metadata as m; print(m.version(\"torchtitan\"))')\ncase $VERSION in\n";
  script += has_toml ? "  0.[12].*) ARGS=(--job.config_file \"$HERE/torchtitan.toml\") ;;\n"
                     : "  0.[12].*) echo \"torchtitan $VERSION has no model of this size\" >&2; exit 1 ;;\n";
  script +=
      "  *) ARGS=(--module optimus_torchtitan --config optimus_plan)\n"
      "     export PYTHONPATH=\"$HERE${PYTHONPATH:+:$PYTHONPATH}\" ;;\nesac\n\n";
  script += fmt::format(
      "PYTORCH_ALLOC_CONF=expandable_segments:True torchrun --nproc-per-node {} --nnodes {} \\\n"
      "  --rdzv-backend c10d --rdzv-endpoint \"$MASTER_ADDR:$MASTER_PORT\" \\\n"
      "  -m torchtitan.train \"${{ARGS[@]}}\" \"$@\"\n",
      nodes.devices, nodes.nodes);
  return script;
}

}  // namespace

void add_torchtitan_files(const Plan& plan, const ModelSpec& model, const ExportSettings& settings,
                          ExportedPlan& exported) {
  std::vector<std::string>& notes = exported.notes;
  const PlanGrid grid = grid_of(plan, Trainer::torchtitan, notes);
  const Flavor& flavor = flavor_of(model);
  check_torchtitan(plan, model, grid);
  const Settings common = common_settings(plan, grid, settings, notes);
  const TitanPipeline pipeline = grid.pp > 1 ? titan_pipeline(plan, model, grid, notes) : TitanPipeline{};
  note_recompute(grid, notes);
  if (model.family == Family::llama && model.rope_scaling.kind == RopeScalingKind::none)
    notes.emplace_back("torchtitan's Llama 3 scales rotary positions like Llama 3.1");
  if (grid.strategy.tp > 1 && !grid.strategy.sequence_parallel)
    notes.emplace_back("torchtitan 0.2 always uses sequence parallelism for norms and residuals with tp");
  const NodeShape nodes = node_shape(grid.devices, settings.devices_per_node, notes);
  if (flavor.is_in_version_0_2)
    exported.files.push_back(
        {"torchtitan.toml", toml_file(plan, flavor, grid, settings, common, pipeline, notes), false});
  else
    notes.push_back(fmt::format("torchtitan 0.2 does not support {}; version 0.3 does", flavor.name));
  exported.files.push_back(
      {"optimus_torchtitan.py", python_file(plan, flavor, grid, settings, common, pipeline, notes), false});
  exported.files.push_back({"launch.sh", titan_launch(plan, nodes, flavor.is_in_version_0_2, notes), true});
}

}  // namespace optimus
