// DeepSpeed exporter: writes ds_config.json, the model as a Hugging Face config.json, and a launch line.
// DeepSpeed does not include a training script, so the user's script must read the two files.
// plan/import_deepspeed.cpp reads ds_config.json back.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "model/hf_config.h"
#include "plan/export_grid.h"

namespace optimus {
namespace {

void check_deepspeed(const Plan& plan, const ModelSpec& model, const PlanGrid& grid) {
  const LayerStrategy& s = grid.strategy;
  if (plan.precision == Precision::fp64 || plan.precision == Precision::fp8)
    throw UserError("DeepSpeed's configuration does not support precision {}; use fp32, bf16 or fp16",
                    text(plan.precision));
  if (grid.pp > 1 && s.cp > 1)
    throw UserError("DeepSpeed does not combine pipelines with sequence parallelism; use pp 1 or cp 1");
  if (s.tp > 1 && s.cp > 1)
    throw UserError(
        "DeepSpeed does not combine tensor parallelism with sequence parallelism; use either tp or cp");
  if (s.ep > 1)
    throw UserError("DeepSpeed configures expert parallelism in the model's code; ep {} cannot be exported",
                    s.ep);
  if (s.tp > 1 && (model.heads % s.tp != 0 || model.kv_heads % s.tp != 0))
    throw UserError("DeepSpeed needs tp {} to divide the {} heads and {} key/value heads", s.tp, model.heads,
                    model.kv_heads);
  if (s.cp > 1 && (model.heads % s.cp != 0 || plan.sequence_length % s.cp != 0))
    throw UserError("DeepSpeed needs cp {} to divide the {} heads and the {} positions", s.cp, model.heads,
                    plan.sequence_length);
}

// Lowers the ZeRO stage to the highest one that DeepSpeed supports with the other settings. DeepSpeed cannot
// shard gradients or parameters in combination with pipelines, and it cannot shard parameters in combination
// with tensor parallelism.
void lower_zero(PlanGrid& grid, std::vector<std::string>& notes) {
  LayerStrategy& s = grid.strategy;
  const int max_zero = grid.pp > 1 ? 1 : s.tp > 1 ? 2 : 3;
  if (s.zero <= max_zero) return;
  notes.push_back(
      fmt::format("DeepSpeed's {} supports at most zero {}, which takes more memory than the plan's zero {}",
                  grid.pp > 1 ? "pipeline" : "tensor parallelism", max_zero, s.zero));
  s.zero = max_zero;
}

OrderedJson zero_json(const PlanGrid& grid, std::vector<std::string>& notes) {
  const LayerStrategy& s = grid.strategy;
  OrderedJson zero = {{"stage", s.zero}};
  if (s.zero > 0) {
    zero["overlap_comm"] = true;
    zero["contiguous_gradients"] = true;
    zero["reduce_scatter"] = true;
  }
  if (s.offload && s.zero > 0) zero["offload_optimizer"] = {{"device", "cpu"}, {"pin_memory", true}};
  if (s.offload && s.zero == 0)
    notes.emplace_back(
        "DeepSpeed offloads only a sharded optimizer; the optimizer state stays on the devices");
  const int num_shard_devices = grid.dp * s.cp;
  if (s.zero == 0 || grid.shards == num_shard_devices) return zero;
  if (s.zero == 3) zero["zero_hpz_partition_size"] = grid.shards;
  notes.push_back(fmt::format("DeepSpeed shards state over all {} devices, not in groups of {}{}",
                              num_shard_devices, grid.shards,
                              s.zero == 3 ? "; each group keeps a second copy of the parameters" : ""));
  return zero;
}

void add_parallelism(const Plan& plan, const PlanGrid& grid, OrderedJson& json,
                     std::vector<std::string>& notes) {
  const LayerStrategy& s = grid.strategy;
  const bool is_recomputed = s.recompute == RecomputeMode::full;
  if (s.tp > 1) json["tensor_parallel"] = {{"autotp_size", s.tp}};
  if (s.sequence_parallel)
    notes.emplace_back(
        "DeepSpeed's tensor parallelism does not shard norms and residuals, which takes more memory");
  if (s.cp > 1) {
    json["sequence_parallel_size"] = s.cp;
    json["data_parallel_size"] = grid.dp;
    notes.emplace_back("DeepSpeed exchanges heads (Ulysses); the plan uses ring attention");
  }
  if (grid.pp > 1 || is_recomputed) {
    json["pipeline"] = {{"stages", grid.pp}, {"partition", "uniform"}};
    json["pipeline"]["activation_checkpoint_interval"] = is_recomputed ? s.recompute_layers : 0;
  }
  if (grid.pp == 1) return;
  notes.push_back(fmt::format("the training script must build a PipelineModule of {} stages{}", grid.pp,
                              s.tp > 1 ? ", whose layers implement tensor parallelism themselves" : ""));
  if (plan.schedule != Schedule::one_f_one_b)
    notes.push_back(fmt::format("DeepSpeed runs 1F1B instead of {}", text(plan.schedule)));
  if (!grid.is_even)
    notes.emplace_back(
        "DeepSpeed distributes layers on its own (partition); the plan's stages have unequal numbers of "
        "layers");
}

void add_recompute(const Plan& plan, const PlanGrid& grid, OrderedJson& json,
                   std::vector<std::string>& notes) {
  const int group = std::max(1, grid.strategy.recompute_layers), layers = plan.num_blocks - 2;
  switch (grid.strategy.recompute) {
    case RecomputeMode::none:
      return;
    case RecomputeMode::selective:
      notes.emplace_back(
          "DeepSpeed has no selective recompute; implement it in the training script, otherwise nothing is "
          "recomputed");
      return;
    case RecomputeMode::full:
      json["activation_checkpointing"] = {{"partition_activations", false},
                                          {"contiguous_memory_optimization", false},
                                          {"cpu_checkpointing", false},
                                          {"number_checkpoints", (layers + group - 1) / group}};
      notes.emplace_back(
          "recompute takes effect only if the model enables it with gradient_checkpointing_enable()");
      return;
  }
}

void add_precision(const Plan& plan, OrderedJson& json) {
  json["bf16"] = {{"enabled", plan.precision == Precision::bf16}};
  json["fp16"] = {{"enabled", plan.precision == Precision::fp16}};
  if (plan.precision != Precision::fp32) json["data_types"] = {{"grad_accum_dtype", text(plan.accumulators)}};
}

void add_optimizer(const ExportSettings& settings, OrderedJson& json) {
  json["gradient_clipping"] = settings.clip;
  json["optimizer"] = {{"type", "AdamW"},
                       {"params",
                        {{"lr", settings.learning_rate},
                         {"betas", {settings.beta1, settings.beta2}},
                         {"weight_decay", settings.weight_decay}}}};
  json["scheduler"] = {{"type", "WarmupCosineLR"},
                       {"params",
                        {{"total_num_steps", settings.steps},
                         {"warmup_num_steps", std::min(settings.warmup, settings.steps / 2)},
                         {"cos_min_ratio", 0.1}}}};
}

std::string deepspeed_launch(const Plan& plan, const PlanGrid& grid, const ExportSettings& settings,
                             std::vector<std::string>& notes) {
  const NodeShape nodes = node_shape(grid.devices, settings.devices_per_node, notes);
  std::string script = "#!/usr/bin/env bash\n";
  script += export_header(plan, "DeepSpeed training of " + in_quotes(plan.model), notes);
  script +=
      "# TRAIN_SCRIPT is a program that calls deepspeed.initialize; config.json in this folder describes its "
      "model.\n";
  script += "set -euo pipefail\nHERE=$(cd \"$(dirname \"$0\")\" && pwd)\n";
  script += "HOSTFILE=${HOSTFILE:-/job/hostfile}\n\n";
  script += fmt::format("deepspeed --hostfile \"$HOSTFILE\" --num_nodes {} --num_gpus {} \\\n", nodes.nodes,
                        nodes.devices);
  script +=
      "  \"${TRAIN_SCRIPT:?set it to your training script}\" --deepspeed --deepspeed_config "
      "\"$HERE/ds_config.json\" \"$@\"\n";
  return script;
}

}  // namespace

void add_deepspeed_files(const Plan& plan, const ModelSpec& model, const ExportSettings& settings,
                         ExportedPlan& exported) {
  std::vector<std::string>& notes = exported.notes;
  PlanGrid grid = grid_of(plan, Trainer::deepspeed, notes);
  check_deepspeed(plan, model, grid);
  lower_zero(grid, notes);
  if (grid.recomputed_layers > 0)
    notes.emplace_back("DeepSpeed's configuration cannot specify which layers are recomputed");
  OrderedJson json;
  json["train_batch_size"] = plan.batch;
  json["train_micro_batch_size_per_gpu"] = grid.microbatch;
  json["gradient_accumulation_steps"] = grid.num_microbatches;
  json["zero_optimization"] = zero_json(grid, notes);
  add_parallelism(plan, grid, json, notes);
  add_recompute(plan, grid, json, notes);
  add_precision(plan, json);
  add_optimizer(settings, json);
  json["steps_per_print"] = 10;
  exported.files.push_back({"ds_config.json", json.dump(2) + "\n", false});
  exported.files.push_back({"config.json", hf_config_from_spec(model).dump(2) + "\n", false});
  exported.files.push_back({"launch.sh", deepspeed_launch(plan, grid, settings, notes), true});
}

}  // namespace optimus
