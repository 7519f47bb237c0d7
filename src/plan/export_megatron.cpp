// Megatron-LM exporter: writes one launch script that runs on every node. Its arguments are defined in
// megatron/training/arguments.py. docs/use/export.md has the table. plan/import_megatron.cpp reads the script
// back.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "plan/export_grid.h"
#include "plan/fp8.h"
#include "plan/plan_json.h"
#include "plan/ranges.h"

namespace optimus {
namespace {

// Arguments, one per line of the script: "--num-layers 32".
using Arguments = std::vector<std::string>;

template <typename... Args>
void append(Arguments& arguments, fmt::format_string<Args...> format, Args&&... args) {
  arguments.push_back(fmt::format(format, std::forward<Args>(args)...));
}

void check_divides(std::int64_t number, std::int64_t divisor, const char* unit, const char* divisor_name) {
  if (number % divisor != 0)
    throw UserError("Megatron-LM needs {} {} to be divisible by {} {}", number, unit, divisor_name, divisor);
}

// Families whose blocks are fully described by the flags below.
constexpr Family kSupportedFamilies[] = {
    Family::gpt2, Family::llama,         Family::mistral, Family::qwen2,     Family::qwen3,
    Family::bert, Family::megatron_bert, Family::mixtral, Family::qwen3_moe, Family::deepseek_v3};

void check_megatron_model(const Plan& plan, const ModelSpec& model, const PlanGrid& grid) {
  const LayerStrategy& s = grid.strategy;
  if (std::find(std::begin(kSupportedFamilies), std::end(kSupportedFamilies), model.family) ==
      std::end(kSupportedFamilies))
    throw UserError("models of family {} cannot be exported for Megatron-LM", text(model.family));
  if (model.norm_position == NormPosition::post)
    throw UserError(
        "Megatron-LM uses pre-norm blocks, but {} has post-norm blocks; use a Megatron-BERT model or another "
        "trainer",
        model.name);
  if (plan.precision == Precision::fp64)
    throw UserError("Megatron-LM does not train in fp64; use fp32, bf16, fp16 or fp8");
  check_divides(model.heads, s.tp, "heads", "tp");
  // A single expert is never split.
  const bool has_columns =
      !model.is_mixture() || model.mixture.first_layer > 0 || model.mixture.layer_interval > 1;
  if (has_columns) check_divides(model.ffn, s.tp, "ffn columns", "tp");
  if (model.mixture.shared_ffn > 0)
    check_divides(model.mixture.shared_ffn, s.tp, "shared-expert columns", "tp");
  if (model.kv_heads % s.tp != 0 && s.tp % model.kv_heads != 0)
    throw UserError("Megatron-LM needs tp {} to divide the {} key/value heads, or be a multiple of them",
                    s.tp, model.kv_heads);
  if (s.cp > 1) check_divides(plan.sequence_length, std::int64_t{2} * s.cp, "positions", "2 x cp");
  if (s.sequence_parallel)
    check_divides(plan.sequence_length, std::int64_t{s.tp} * s.cp, "positions", "tp x cp");
}

void put_rope(const ModelSpec& model, Arguments& arguments, std::vector<std::string>& notes) {
  append(arguments, "--position-embedding-type rope");
  append(arguments, "--rotary-base {}", std::llround(model.rope_theta));
  if (std::round(model.rope_theta) != model.rope_theta)
    notes.push_back(fmt::format("Megatron-LM rounds the rotary base {} to an integer", model.rope_theta));
  const RopeScaling& scaling = model.rope_scaling;
  switch (scaling.kind) {
    case RopeScalingKind::none:
      break;
    case RopeScalingKind::linear:
      append(arguments, "--rotary-seq-len-interpolation-factor {}", std::llround(scaling.factor));
      if (std::round(scaling.factor) != scaling.factor)
        notes.push_back(
            fmt::format("Megatron-LM rounds the rotary scaling factor {} to an integer", scaling.factor));
      break;
    case RopeScalingKind::llama3:
      append(arguments, "--use-rope-scaling");
      append(arguments, "--rope-scaling-factor {}", scaling.factor);
      if (scaling.low_freq_factor != 1 || scaling.high_freq_factor != 4 ||
          scaling.original_max_positions != 8192)
        notes.emplace_back(
            "Megatron-LM's rotary scaling is fixed to that of Llama 3: factors 1 and 4, original context "
            "length "
            "8192");
      break;
  }
}

void put_biases(const ModelSpec& model, Arguments& arguments, std::vector<std::string>& notes) {
  const bool has_others = model.has_out_bias && model.has_mlp_bias;
  if (!has_others) append(arguments, "--disable-bias-linear");
  if (!has_others && model.has_qkv_bias) append(arguments, "--add-qkv-bias");
  if (model.has_out_bias != model.has_mlp_bias || (has_others && !model.has_qkv_bias))
    notes.emplace_back(
        "Megatron-LM supports biases either in all linear layers or only in query, key and value");
}

void put_latent_attention(const ModelSpec& model, Arguments& arguments) {
  append(arguments, "--multi-latent-attention");
  if (model.latent.query_rank > 0) append(arguments, "--q-lora-rank {}", model.latent.query_rank);
  append(arguments, "--kv-lora-rank {}", model.latent.kv_rank);
  append(arguments, "--qk-head-dim {}", model.head_dim - model.latent.rope_dim);
  append(arguments, "--qk-pos-emb-head-dim {}", model.latent.rope_dim);
  append(arguments, "--v-head-dim {}", model.latent.value_dim);
}

// The pattern of dense (0) and MoE (1) layers as a Python expression: "[0]*3+[1]*58".
std::string moe_layer_pattern(const ModelSpec& model) {
  std::vector<std::string> runs;
  for (std::int64_t first = 0; first < model.layers;) {
    std::int64_t end = first + 1;
    while (end < model.layers && model.is_mixture_layer(end) == model.is_mixture_layer(first)) ++end;
    runs.push_back(fmt::format("[{}]*{}", model.is_mixture_layer(first) ? 1 : 0, end - first));
    first = end;
  }
  return join(runs, "+");
}

void put_moe(const ModelSpec& model, Arguments& arguments) {
  const Mixture& m = model.mixture;
  append(arguments, "--num-experts {}", m.experts);
  append(arguments, "--moe-router-topk {}", m.experts_per_token);
  append(arguments, "--moe-ffn-hidden-size {}", m.ffn);
  if (m.shared_ffn > 0) append(arguments, "--moe-shared-expert-intermediate-size {}", m.shared_ffn);
  if (m.first_layer > 0 || m.layer_interval > 1)
    append(arguments, "--moe-layer-freq '{}'", moe_layer_pattern(model));
  if (!m.normalizes_weights) append(arguments, "--moe-router-pre-softmax");
  if (m.groups > 1) {
    append(arguments, "--moe-router-num-groups {}", m.groups);
    append(arguments, "--moe-router-group-topk {}", m.groups_per_token);
  }
  if (m.scale != 1) append(arguments, "--moe-router-topk-scaling-factor {}", m.scale);
  const bool has_bias = model.family == Family::deepseek_v3;
  if (has_bias)
    append(arguments, "--moe-router-score-function sigmoid"),
        append(arguments, "--moe-router-enable-expert-bias");
  append(arguments, "--moe-router-load-balancing-type {}", m.balance_loss > 0 ? "aux_loss" : "none");
  if (m.balance_loss > 0) append(arguments, "--moe-aux-loss-coeff {}", m.balance_loss);
  append(arguments, "--moe-grouped-gemm");
  append(arguments, "--moe-token-dispatcher-type alltoall");
}

Arguments model_arguments(const Plan& plan, const ModelSpec& model, std::vector<std::string>& notes) {
  Arguments arguments;
  append(arguments, "--num-layers {}", model.layers);
  append(arguments, "--hidden-size {}", model.hidden);
  append(arguments, "--ffn-hidden-size {}", model.ffn);
  append(arguments, "--num-attention-heads {}", model.heads);
  append(arguments, "--kv-channels {}", model.head_dim);
  if (model.kv_heads != model.heads)
    append(arguments, "--group-query-attention"), append(arguments, "--num-query-groups {}", model.kv_heads);
  append(arguments, "--seq-length {}", plan.sequence_length);
  append(arguments, "--max-position-embeddings {}", model.max_positions);
  append(arguments, "--vocab-size {}", model.vocab);
  append(arguments, "--normalization {}", model.norm == NormKind::rms_norm ? "RMSNorm" : "LayerNorm");
  append(arguments, "--norm-epsilon {}", model.norm_eps);
  if (model.positions == PositionKind::rope)
    put_rope(model, arguments, notes);
  else
    append(arguments, "--position-embedding-type learned_absolute");
  if (model.is_gated) append(arguments, "--swiglu");
  const bool is_default_activation =
      model.is_gated ? model.activation == Activation::silu
                     : model.activation == Activation::gelu || model.activation == Activation::gelu_tanh;
  if (!is_default_activation)
    notes.push_back(fmt::format("Megatron-LM's activation is {}, but the model's is {}",
                                model.is_gated ? "silu" : "gelu", text(model.activation)));
  put_biases(model, arguments, notes);
  if (model.has_qk_norm) append(arguments, "--qk-layernorm");
  if (model.is_latent()) put_latent_attention(model, arguments);
  if (model.is_mixture()) put_moe(model, arguments);
  if (!model.is_tied) append(arguments, "--untie-embeddings-and-output-weights");
  append(arguments, "--init-method-std {}", model.init_range);
  append(arguments, "--attention-dropout {}", model.attention_dropout);
  append(arguments, "--hidden-dropout {}", model.hidden_dropout);
  if (model.embedding_dropout != model.hidden_dropout)
    notes.push_back(fmt::format(
        "Megatron-LM also applies the hidden-state dropout ({}) to embeddings; the embedding dropout is {}",
        model.hidden_dropout, model.embedding_dropout));
  return arguments;
}

// "Et*8|t*8|t*7|t*7L": the blocks of each stage, or of each chunk of the stages.
std::string layout_text(const Plan& plan, const PlanGrid& grid) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < grid.parts.size(); ++i) {
    std::string part;
    if (grid.parts[i].begin == 0) part += "E";
    const std::int64_t layers = grid.layers_of(i, plan.num_blocks);
    if (layers == 1) part += "t";
    if (layers > 1) part += fmt::format("t*{}", layers);
    if (grid.parts[i].end == plan.num_blocks) part += "L";
    parts.push_back(part);
  }
  return join(parts, "|");
}

// Megatron interleaves micro-batches in groups of at least pp. The last, incomplete group must be empty or
// have at least pp micro-batches.
std::int64_t interleaving_group(const PlanGrid& grid) {
  for (std::int64_t group = grid.pp; group <= grid.num_microbatches; ++group)
    if (grid.num_microbatches % group == 0 || grid.num_microbatches % group >= grid.pp) return group;
  throw UserError(
      "Megatron-LM's interleaved schedule needs at least as many micro-batches as stages; the plan has {} "
      "micro-batches and {} stages",
      grid.num_microbatches, grid.pp);
}

void put_pipeline(const Plan& plan, const PlanGrid& grid, Arguments& arguments,
                  std::vector<std::string>& notes) {
  append(arguments, "--pipeline-model-parallel-size {}", grid.pp);
  if (grid.pp == 1) return;
  if (!grid.is_even)
    append(arguments, "--pipeline-model-parallel-layout '{}'", layout_text(plan, grid));
  else if (grid.chunks > 1)
    append(arguments, "--num-virtual-stages-per-pipeline-rank {}", grid.chunks);
  if (grid.chunks > 1)
    if (const std::int64_t group = interleaving_group(grid); group != grid.pp) {
      append(arguments, "--microbatch-group-size-per-virtual-pipeline-stage {}", group);
      notes.push_back(fmt::format(
          "{} micro-batches are not divisible by {} stages; Megatron-LM interleaves groups of {}, "
          "which takes more memory",
          grid.num_microbatches, grid.pp, group));
    }
  if (plan.schedule == Schedule::gpipe || plan.schedule == Schedule::zero_bubble)
    notes.push_back(fmt::format(
        "Megatron-LM runs 1F1B instead of {}: {}", text(plan.schedule),
        plan.schedule == Schedule::gpipe ? "the same bubble with less memory" : "a longer bubble"));
}

void put_sharding(const PlanGrid& grid, Arguments& arguments, std::vector<std::string>& notes) {
  const LayerStrategy& s = grid.strategy;
  const bool is_sharded = s.zero > 0 || s.offload;
  if (is_sharded) append(arguments, "--use-distributed-optimizer");
  if (s.zero >= 2) {
    append(arguments, "--use-megatron-fsdp");
    append(arguments, "--data-parallel-sharding-strategy {}",
           s.zero == 2 ? "optim_grads" : "optim_grads_params");
    append(arguments, "--no-gradient-accumulation-fusion");
  }
  append(arguments, "--ckpt-format {}", s.zero >= 2 ? "fsdp_dtensor" : "torch_dist");
  const int instances = grid.dp * s.cp / grid.shards;
  if (s.zero > 0 && instances > 1) append(arguments, "--num-distributed-optimizer-instances {}", instances);
  if (grid.dp * s.cp > 1) append(arguments, "--overlap-grad-reduce");
  if (grid.dp * s.cp > 1 && is_sharded) append(arguments, "--overlap-param-gather");
  if (!s.offload) return;
  append(arguments, "--optimizer-cpu-offload");
  append(arguments, "--use-precision-aware-optimizer");
  if (s.zero == 0)
    notes.emplace_back("Megatron-LM offloads only a sharded optimizer, so the export uses zero 1");
}

void put_recompute(const PlanGrid& grid, Arguments& arguments, std::vector<std::string>& notes) {
  switch (grid.strategy.recompute) {
    case RecomputeMode::none:
      return;
    case RecomputeMode::selective:
      append(arguments, "--recompute-granularity selective");
      append(arguments, "--recompute-modules layernorm");
      notes.emplace_back(
          "Megatron-LM recomputes norms, but it saves the outputs of activation functions instead of "
          "recomputing "
          "them");
      return;
    case RecomputeMode::full:
      append(arguments, "--recompute-granularity full");
      append(arguments, "--recompute-method {}", grid.recomputed_layers > 0 ? "block" : "uniform");
      append(arguments, "--recompute-num-layers {}",
             grid.recomputed_layers > 0 ? grid.recomputed_layers : grid.strategy.recompute_layers);
      return;
  }
}

// Megatron-LM computes all layers in fp8. With current scaling, some layers at the start of the first stage
// and at the end of the last stage may be excluded.
void put_fp8(const Plan& plan, const PlanGrid& grid, Arguments& arguments, std::vector<std::string>& notes) {
  append(arguments, "--fp8-format hybrid");
  const bool is_current = plan.fp8.scaling == Fp8Scaling::current;
  append(arguments, "--fp8-recipe {}", is_current ? "tensorwise" : "delayed");
  if (!is_current)
    append(arguments, "--fp8-amax-history-len {}", plan.fp8.window),
        append(arguments, "--fp8-amax-compute-algo max");
  const std::vector<int> blocks = fp8_blocks(plan);
  const int layers = plan.num_blocks - 2;
  if (std::ssize(blocks) == layers) return;
  const int first = blocks.empty() ? layers : blocks.front() - 1,
            last = blocks.empty() ? layers : layers - blocks.back();
  const bool is_one_run = std::ssize(blocks) == layers - first - last;
  if (is_current && is_one_run && std::max(first, last) <= layers / grid.pp) {
    append(arguments, "--first-last-layers-bf16");
    append(arguments, "--num-layers-at-start-in-bf16 {}", first),
        append(arguments, "--num-layers-at-end-in-bf16 {}", last);
    return;
  }
  notes.push_back(fmt::format("Megatron-LM computes all layers in fp8, but the plan uses fp8 {}{}",
                              blocks.empty() ? "for none of them" : "only for blocks " + ranges_text(blocks),
                              is_current ? "" : " (\"scales\": \"current\" allows excluding some)"));
}

void put_precision(const Plan& plan, const PlanGrid& grid, Arguments& arguments,
                   std::vector<std::string>& notes) {
  if (plan.precision != Precision::fp8 && has_fp8(plan))
    notes.push_back(
        fmt::format("Megatron-LM does not compute blocks {} in fp8", ranges_text(fp8_blocks(plan))));
  switch (plan.precision) {
    case Precision::fp64:
    case Precision::fp32:
      return;
    case Precision::bf16:
      append(arguments, "--bf16");
      if (plan.accumulators == Precision::bf16) append(arguments, "--grad-reduce-in-bf16");
      return;
    case Precision::fp16:
      append(arguments, "--fp16");
      if (plan.accumulators == Precision::fp32) append(arguments, "--accumulate-allreduce-grads-in-fp32");
      return;
    case Precision::fp8:
      append(arguments, "--bf16");
      return put_fp8(plan, grid, arguments, notes);
  }
}

Arguments parallel_arguments(const Plan& plan, const PlanGrid& grid, bool is_mixture,
                             std::vector<std::string>& notes) {
  Arguments arguments;
  const LayerStrategy& s = grid.strategy;
  append(arguments, "--tensor-model-parallel-size {}", s.tp);
  if (s.sequence_parallel) append(arguments, "--sequence-parallel");
  put_pipeline(plan, grid, arguments, notes);
  append(arguments, "--context-parallel-size {}", s.cp);
  if (s.cp > 1) append(arguments, "--cp-comm-type p2p");
  if (s.ep > 1) append(arguments, "--expert-model-parallel-size {}", s.ep);
  if (is_mixture && s.tp > 1) append(arguments, "--expert-tensor-parallel-size 1");
  put_sharding(grid, arguments, notes);
  put_recompute(grid, arguments, notes);
  put_precision(plan, grid, arguments, notes);
  append(arguments, "--micro-batch-size {}", grid.microbatch);
  append(arguments, "--global-batch-size {}", plan.batch);
  return arguments;
}

Arguments training_arguments(const ExportSettings& settings) {
  Arguments arguments;
  append(arguments, "--train-iters {}", settings.steps);
  append(arguments, "--lr {}", settings.learning_rate);
  append(arguments, "--min-lr {:.6g}", settings.learning_rate / 10);
  append(arguments, "--lr-decay-style cosine");
  append(arguments, "--lr-warmup-iters {}", std::min(settings.warmup, settings.steps / 2));
  append(arguments, "--weight-decay {}", settings.weight_decay);
  append(arguments, "--adam-beta1 {}", settings.beta1);
  append(arguments, "--adam-beta2 {}", settings.beta2);
  append(arguments, "--clip-grad {}", settings.clip);
  append(arguments, "--seed {}", settings.seed);
  append(arguments, "--log-interval 10");
  append(arguments, "--eval-interval 1000");
  append(arguments, "--eval-iters 10");
  append(arguments, "--save \"$CHECKPOINT_PATH\"");
  append(arguments, "--save-interval 1000");
  return arguments;
}

std::string array_text(const std::string& name, const Arguments& arguments) {
  std::string text = name + "=(\n";
  for (const std::string& argument : arguments) text += "  " + argument + "\n";
  return text + ")\n";
}

std::string variables_text(const PlanGrid& grid, const ExportSettings& settings,
                           std::vector<std::string>& notes) {
  const NodeShape nodes = node_shape(grid.devices, settings.devices_per_node, notes);
  const bool is_fsdp = grid.strategy.zero >= 2;
  const bool needs_one_connection = !is_fsdp && (grid.strategy.tp > 1 || grid.strategy.cp > 1);
  std::string text = needs_one_connection ? "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" : "";
  if (is_fsdp)
    text += "unset CUDA_DEVICE_MAX_CONNECTIONS  # fully sharded training needs several connections\n";
  text += fmt::format("GPUS_PER_NODE={}\nNUM_NODES={}\n", nodes.devices, nodes.nodes);
  text +=
      "NODE_RANK=${NODE_RANK:-0}\nMASTER_ADDR=${MASTER_ADDR:-localhost}\nMASTER_PORT=${MASTER_PORT:-6000}\n";
  text += fmt::format("DATA_PATH=${{DATA_PATH:-{}}}\n", shell_quoted(settings.data));
  text += fmt::format("TOKENIZER_MODEL=${{TOKENIZER_MODEL:-{}}}\n", shell_quoted(settings.tokenizer));
  text += "CHECKPOINT_PATH=${CHECKPOINT_PATH:-checkpoints}\n\n";
  return text;
}

constexpr const char* kDataAndLaunch = R"(# Without data, Megatron-LM trains on mock data.
if [ -n "$DATA_PATH" ]; then
  DATA_ARGS=(--data-path $DATA_PATH --split 969,30,1 --tokenizer-type HuggingFaceTokenizer )"
                                       R"(--tokenizer-model "$TOKENIZER_MODEL")
else
  DATA_ARGS=(--mock-data --tokenizer-type NullTokenizer)
fi

torchrun --nproc-per-node "$GPUS_PER_NODE" --nnodes "$NUM_NODES" --node-rank "$NODE_RANK" \
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
)";

}  // namespace

void add_megatron_files(const Plan& plan, const ModelSpec& model, const ExportSettings& settings,
                        ExportedPlan& exported) {
  std::vector<std::string>& notes = exported.notes;
  const PlanGrid grid = grid_of(plan, Trainer::megatron, notes);
  check_megatron_model(plan, model, grid);
  const std::string model_part = array_text("MODEL_ARGS", model_arguments(plan, model, notes));
  const std::string parallel_part =
      array_text("PARALLEL_ARGS", parallel_arguments(plan, grid, model.is_mixture(), notes));
  const std::string variables = variables_text(grid, settings, notes);
  std::string script = "#!/usr/bin/env bash\n";
  script += export_header(plan, "Megatron-LM pretraining of " + in_quotes(model.name), notes);
  script +=
      "# Run this script on every node in a checkout of Megatron-LM; set NODE_RANK and MASTER_ADDR on each "
      "node.\nset -euo pipefail\n\n";
  script +=
      variables + model_part + parallel_part + array_text("TRAINING_ARGS", training_arguments(settings));
  script += kDataAndLaunch;
  script += fmt::format(
      "  {} \"${{MODEL_ARGS[@]}}\" \"${{PARALLEL_ARGS[@]}}\" \"${{TRAINING_ARGS[@]}}\" "
      "\"${{DATA_ARGS[@]}}\" \"$@\"\n",
      model.is_bert() ? "examples/bert/pretrain_bert.py" : "pretrain_gpt.py");
  exported.files.push_back({"launch.sh", script, true});
}

}  // namespace optimus
