// A Megatron-LM command line as a plan: the model that its flags describe, then the grid. docs/export.md has the table. Flags are
// those of megatron/training/arguments.py, older spellings included.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "model/presets.h"
#include "plan/import_arguments.h"
#include "plan/import_build.h"
#include "plan/import_words.h"

namespace optimus {
namespace {

// Flags that change nothing in who computes what: learning, data, files, logs, kernels. A name that ends in '-' stands for all that
// begin so.
constexpr std::array kNoMatter = {
    "--adam-",
    "--apply-layernorm-1p",
    "--apply-query-key-layer-scaling",
    "--async-save",
    "--async-tensor-model-parallel-allreduce",
    "--attention-backend",
    "--attention-softmax-in-fp32",
    "--auto-detect-ckpt-format",
    "--bias-dropout-fusion",
    "--bias-gelu-fusion",
    "--bias-swiglu-fusion",
    "--calculate-per-token-loss",
    "--check-",
    "--ckpt-",
    "--clip-grad",
    "--cross-entropy-",
    "--data-cache-path",
    "--data-path",
    "--dataloader-type",
    "--ddp-",
    "--decoupled-",
    "--deterministic-mode",
    "--disable-straggler-on-startup",
    "--dist-ckpt-",
    "--distributed-backend",
    "--distributed-timeout-minutes",
    "--empty-unused-memory-level",
    "--enable-cuda-graph",
    "--enable-experimental",
    "--enable-ft-package",
    "--enable-gloo-process-groups",
    "--enable-one-logger",
    "--end-weight-decay",
    "--eod-mask-loss",
    "--eval-",
    "--exit-",
    "--finetune",
    "--fp8-amax-",
    "--fp8-interval",
    "--fp8-margin",
    "--fp8-recipe",
    "--full-validation",
    "--hysteresis",
    "--init-method-xavier-uniform",
    "--initial-loss-scale",
    "--load",
    "--local-rank",
    "--log-",
    "--loss-scale",
    "--lr",
    "--lr-",
    "--make-vocab-size-divisible-by",
    "--manual-gc",
    "--manual-gc-",
    "--merge-file",
    "--min-loss-scale",
    "--min-lr",
    "--mock-data",
    "--no-bias-dropout-fusion",
    "--no-bias-gelu-fusion",
    "--no-bias-swiglu-fusion",
    "--no-check-",
    "--no-create-attention-mask-in-dataloader",
    "--no-gradient-accumulation-fusion",
    "--no-initialization",
    "--no-load-",
    "--no-masked-softmax-fusion",
    "--no-mmap-bin-files",
    "--no-overlap-p2p-communication",
    "--no-persist-layer-norm",
    "--no-rope-fusion",
    "--no-save-",
    "--num-dataset-builder-threads",
    "--num-workers",
    "--override-opt-param-scheduler",
    "--overlap-grad-reduce",
    "--overlap-p2p-communication",
    "--overlap-p2p-communication-warmup-flush",
    "--overlap-param-gather",
    "--overlap-param-gather-with-optimizer-step",
    "--profile",
    "--profile-",
    "--rerun-",
    "--reset-attention-mask",
    "--reset-position-ids",
    "--save",
    "--save-",
    "--seed",
    "--sgd-momentum",
    "--split",
    "--start-weight-decay",
    "--te-rng-tracker",
    "--tensorboard-",
    "--test-data-path",
    "--timing-",
    "--tokenizer-",
    "--tp-comm-",
    "--train-data-path",
    "--train-iters",
    "--train-samples",
    "--transformer-impl",
    "--use-checkpoint-",
    "--use-dist-ckpt",
    "--use-flash-attn",
    "--use-mcore-models",
    "--use-precision-aware-optimizer",
    "--use-pytorch-profiler",
    "--valid-data-path",
    "--vocab-file",
    "--wandb-",
    "--weight-decay",
    "--weight-decay-",
};

bool is_without_matter(const std::string& flag) {
  return std::any_of(kNoMatter.begin(), kNoMatter.end(), [&](std::string_view known) {
    return ends_with(known, "-") ? starts_with(flag, known) : flag == known;
  });
}

// The family whose blocks the flags describe.
std::optional<Family> family_of(ArgumentList& a, bool is_bert) {
  const std::string norm = a.text("--normalization").value_or("LayerNorm");
  const bool is_rotary =
      a.text("--position-embedding-type").value_or("") == "rope" || a.has("--use-rotary-position-embeddings");
  const bool is_gated = a.has("--swiglu");
  const bool has_qk_norm = a.has("--qk-layernorm");
  const bool has_qkv_bias = a.has("--add-qkv-bias");
  if (is_bert) return Family::megatron_bert;
  if (norm == "RMSNorm" && is_rotary && is_gated)
    return has_qk_norm ? Family::qwen3 : has_qkv_bias ? Family::qwen2 : Family::llama;
  if (norm == "LayerNorm" && !is_rotary && !is_gated && !has_qk_norm) return Family::gpt2;
  return std::nullopt;
}

// A preset of the family, whose fixed facts an imported model takes over.
const char* example_of(Family family) {
  if (family == Family::gpt2) return "gpt3-125m";
  if (family == Family::qwen2) return "qwen2-7b";
  if (family == Family::qwen3) return "qwen3-8b";
  if (family == Family::megatron_bert) return "megatron-bert-345m";
  return "llama2-7b";
}

void read_rope(ArgumentList& a, ModelSpec& model, bool is_named) {
  if (model.positions != PositionKind::rope) return;
  const auto base = a.count("--rotary-base");
  if (base || !is_named) model.rope_theta = static_cast<double>(base.value_or(10000));
  if (!is_named) model.rope_scaling = {};
  const bool is_scaled = a.has("--use-rope-scaling");
  const double factor = a.number("--rope-scaling-factor").value_or(8);
  if (is_scaled) model.rope_scaling = {RopeScalingKind::llama3, factor, 1, 4, 8192};
  if (const auto linear = a.count("--rotary-seq-len-interpolation-factor"))
    model.rope_scaling = {RopeScalingKind::linear, static_cast<double>(*linear), 1, 4, 0};
}

void read_biases(ArgumentList& a, ModelSpec& model, bool is_named) {
  const bool has_all = !a.has("--disable-bias-linear"), has_qkv = a.has("--add-qkv-bias");
  if (is_named && has_all) return;
  model.has_out_bias = model.has_mlp_bias = has_all;
  model.has_qkv_bias = has_all || has_qkv;
}

// What else flags say of a model. Megatron-LM's defaults count where nobody named one.
void read_facts(ArgumentList& a, ModelSpec& model, bool is_named) {
  const auto set = [&](const std::string& flag, double& target, double usual) {
    const std::optional<double> value = a.number(flag);
    if (value || !is_named) target = value.value_or(usual);
  };
  set("--norm-epsilon", model.norm_eps, 1e-5);
  read_rope(a, model, is_named);
  read_biases(a, model, is_named);
  const bool is_untied = a.has("--untie-embeddings-and-output-weights");
  if (is_untied || !is_named) model.is_tied = !is_untied;
  set("--init-method-std", model.init_range, 0.02);
  set("--attention-dropout", model.attention_dropout, 0.1);
  set("--hidden-dropout", model.hidden_dropout, 0.1);
  if (a.has("--hidden-dropout") || !is_named) model.embedding_dropout = model.hidden_dropout;
}

std::int64_t vocabulary_of(ArgumentList& a, const std::string& source) {
  if (const auto size = a.count("--vocab-size")) return *size;
  const std::string tokenizer = a.text("--tokenizer-type").value_or("");
  if (tokenizer == "GPT2BPETokenizer") return 50257;
  if (tokenizer == "Llama2Tokenizer") return 32000;
  throw UserError("{}: the size of the vocabulary is not in it; give --vocab N or --model M", source);
}

// The name of the preset that has this shape.
std::string preset_name(const ModelSpec& model) {
  for (const std::string& name : preset_names()) {
    ModelSpec preset = *find_preset(name);
    preset.name = model.name;
    if (preset.family == Family::mistral) preset.family = Family::llama;
    if (preset == model) return name;
  }
  return "";
}

// Numbers that both a named model and one made of flags take from the command line.
void read_dimensions(ArgumentList& a, ModelSpec& model, bool is_named) {
  const auto set = [&](const std::string& flag, std::int64_t& target) {
    if (const auto value = a.count(flag)) target = *value;
  };
  set("--num-layers", model.layers);
  const std::int64_t hidden = model.hidden, heads = model.heads;
  set("--hidden-size", model.hidden);
  set("--num-attention-heads", model.heads);
  const bool is_other = !is_named || model.hidden != hidden || model.heads != heads;
  if (is_other) {
    model.kv_heads = model.heads;
    model.head_dim = model.hidden / std::max<std::int64_t>(1, model.heads);
    model.ffn = model.is_gated ? model.hidden * 8 / 3 / 64 * 64 : 4 * model.hidden;
  }
  std::int64_t groups = model.kv_heads;
  set("--num-query-groups", groups);
  if (a.has("--group-query-attention")) model.kv_heads = groups;
  set("--kv-channels", model.head_dim);
  set("--ffn-hidden-size", model.ffn);
  set("--max-position-embeddings", model.max_positions);
}

ModelSpec model_from_flags(ArgumentList& a, const std::string& source, const ImportRequest& request,
                           bool is_bert) {
  const std::optional<Family> family = family_of(a, is_bert);
  if (!family)
    throw UserError(
        "{}: its normalization, positions and activation are those of no model family here; give --model M",
        source);
  for (const char* needed : {"--num-layers", "--hidden-size", "--num-attention-heads"})
    if (!a.has(needed)) throw UserError("{}: {} is missing; add it, or give --model M", source, needed);
  ModelSpec model = *find_preset(example_of(*family));
  model.name = "imported";
  read_dimensions(a, model, false);
  model.vocab = request.vocab ? *request.vocab : vocabulary_of(a, source);
  read_facts(a, model, false);
  if (const std::string name = preset_name(model); !name.empty()) model.name = name;
  return model;
}

// Experts are as --model says: what the flags say otherwise is told.
void note_mixture(ArgumentList& a, const ModelSpec& model, std::vector<std::string>& notes) {
  const Mixture& m = model.mixture;
  for (const auto& [flag, own] : {std::pair{"--num-experts", m.experts},
                                  {"--moe-router-topk", m.experts_per_token},
                                  {"--moe-ffn-hidden-size", m.ffn},
                                  {"--moe-shared-expert-intermediate-size", m.shared_ffn}})
    if (const auto value = a.count(flag); value && *value != own)
      notes.push_back(
          fmt::format("{} {} is not applied: {} has {}, as --model says", flag, *value, model.name, own));
  for (const char* flag :
       {"--moe-layer-freq", "--moe-grouped-gemm", "--moe-token-dispatcher-type", "--moe-aux-loss-coeff",
        "--moe-router-load-balancing-type", "--moe-router-pre-softmax", "--moe-router-num-groups",
        "--moe-router-group-topk", "--moe-router-topk-scaling-factor", "--moe-router-score-function",
        "--moe-router-enable-expert-bias", "--multi-latent-attention", "--q-lora-rank", "--kv-lora-rank",
        "--qk-head-dim", "--qk-pos-emb-head-dim", "--v-head-dim"})
    (void)a.has(flag);
  if (const auto width = a.count("--expert-tensor-parallel-size"); width && *width > 1)
    notes.push_back(
        fmt::format("experts are not cut here; --expert-tensor-parallel-size {} is not applied", *width));
}

bool is_valid(const ModelSpec& model) {
  try {
    validate(model);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

// The user's model, with what flags say of its numbers; what they say of its kind is the model's own matter.
ModelSpec named_model(ArgumentList& a, const std::string& source, const ImportRequest& request, bool is_bert,
                      std::vector<std::string>& notes) {
  ModelSpec model = *request.model;
  if (model.is_custom())
    throw UserError("{}: {} is a model of custom blocks, which Megatron-LM does not train", source,
                    model.name);
  const auto note = [&](const char* flag) {
    notes.push_back(fmt::format("{} is not applied: the model is {}, as --model says", flag, model.name));
  };
  const bool says_kind = a.has("--normalization") || a.has("--position-embedding-type") ||
                         a.has("--swiglu") || a.has("--qk-layernorm") ||
                         a.has("--use-rotary-position-embeddings");
  const std::optional<Family> family = family_of(a, is_bert);
  const bool is_llama = model.family == Family::mistral || model.family == Family::mixtral;
  if (says_kind && !model.is_mixture() && family != (is_llama ? Family::llama : model.family))
    notes.push_back(fmt::format(
        "normalization, positions, activation and biases are those of {}, as --model says, not the flags'",
        model.name));
  read_dimensions(a, model, true);
  if (const auto vocab = a.count("--vocab-size")) model.vocab = *vocab;
  if (request.vocab) model.vocab = *request.vocab;
  for (const char* flag : {"--rotary-base", "--use-rope-scaling", "--rotary-seq-len-interpolation-factor"})
    if (model.positions != PositionKind::rope && a.has(flag)) note(flag);
  const ModelSpec before = model;
  read_facts(a, model, true);
  if (!is_valid(model) && is_valid(before)) {
    // Biases are part of what a family is.
    model.has_out_bias = before.has_out_bias, model.has_mlp_bias = before.has_mlp_bias;
    model.has_qkv_bias = before.has_qkv_bias;
    note("--disable-bias-linear");
  }
  if (a.has("--num-experts")) note_mixture(a, model, notes);
  return model;
}

ModelSpec imported_model(ArgumentList& a, const std::string& source, const ImportRequest& request,
                         bool is_bert, std::vector<std::string>& notes) {
  if (a.has("--num-experts") && !(request.model && request.model->is_mixture()))
    throw UserError(
        "{}: --num-experts: which mixture of experts it is the flags do not say; give --model M, or remove "
        "it "
        "to plan the dense part",
        source);
  const ModelSpec model = request.model ? named_model(a, source, request, is_bert, notes)
                                        : model_from_flags(a, source, request, is_bert);
  try {
    validate(model);
  } catch (const UserError& error) {
    throw UserError("{}: {}", source, error.what());
  }
  return model;
}

void read_precision(ArgumentList& a, ImportedGrid& grid) {
  const bool is_fp8 = a.has("--fp8-format") || a.has("--fp8-hybrid") || a.has("--fp8-e4m3");
  const bool is_fp16 = a.has("--fp16"), is_bf16 = a.has("--bf16");
  const bool is_wide = a.has("--accumulate-allreduce-grads-in-fp32"),
             is_narrow = a.has("--grad-reduce-in-bf16");
  grid.shape.precision = is_fp8    ? Precision::fp8
                         : is_fp16 ? Precision::fp16
                         : is_bf16 ? Precision::bf16
                                   : Precision::fp32;
  if (grid.shape.precision == Precision::fp16 && !is_wide) grid.accumulators = Precision::fp16;
  if (grid.shape.precision == Precision::bf16 && is_narrow) grid.accumulators = Precision::bf16;
}

void read_recompute(ArgumentList& a, const std::string& source, ImportedGrid& grid,
                    std::vector<std::string>& notes) {
  LayerStrategy& s = grid.shape.strategy;
  std::string granularity = a.text("--recompute-granularity").value_or("");
  if (a.has("--recompute-activations")) granularity = "selective";
  const std::string method = a.text("--recompute-method").value_or("uniform");
  const auto layers = static_cast<int>(a.count("--recompute-num-layers", 1, 10'000).value_or(1));
  const std::vector<std::string> modules = a.words("--recompute-modules");
  if (granularity == "selective") {
    s.recompute = RecomputeMode::selective;
    if (modules != std::vector<std::string>{"layernorm"})
      notes.emplace_back(
          "selective recompute is ours: norms and activation functions; attention never keeps its scores");
  } else if (granularity == "full") {
    s.recompute = RecomputeMode::full;
    (method == "block" ? grid.recomputed_layers : s.recompute_layers) = layers;
  } else if (!granularity.empty()) {
    throw UserError("{}: --recompute-granularity {} is neither full nor selective", source,
                    in_quotes(granularity));
  }
}

void read_sharding(ArgumentList& a, const std::string& source, LayerStrategy& s) {
  static const std::vector<std::string> strategies = {"no_shard", "optim", "optim_grads",
                                                      "optim_grads_params"};
  const bool is_distributed = a.has("--use-distributed-optimizer");
  const bool is_fsdp = a.has("--use-megatron-fsdp") || a.has("--use-custom-fsdp");
  const std::string word = a.text("--data-parallel-sharding-strategy").value_or("optim_grads_params");
  const auto found = std::find(strategies.begin(), strategies.end(), word);
  if (found == strategies.end())
    throw UserError("{}: --data-parallel-sharding-strategy {} is not one of {}", source, in_quotes(word),
                    join(strategies, ", "));
  s.zero = is_distributed ? 1 : 0;
  if (is_fsdp) s.zero = static_cast<int>(found - strategies.begin());
  if (a.has("--use-torch-fsdp2")) s.zero = a.has("--torch-fsdp2-no-reshard-after-forward") ? 2 : 3;
  s.offload = a.has("--optimizer-cpu-offload");
}

// Layers of the parts where the flags make them unequal.
void read_stages(ArgumentList& a, const std::string& source, std::int64_t layers, ImportedGrid& grid) {
  const int pp = grid.shape.pp;
  const auto first = a.count("--decoder-first-pipeline-num-layers"),
             last = a.count("--decoder-last-pipeline-num-layers"),
             each = a.count("--num-layers-per-virtual-pipeline-stage"),
             chunks = a.count("--num-virtual-stages-per-pipeline-rank", 1, 10'000);
  const bool counts_embedding = a.has("--account-for-embedding-in-pipeline-split"),
             counts_loss = a.has("--account-for-loss-in-pipeline-split");
  if (const auto layout = a.text("--pipeline-model-parallel-layout")) {
    grid.layers = parse_layout(*layout, source + ": --pipeline-model-parallel-layout");
    if (std::ssize(grid.layers) % pp != 0)
      throw UserError("{}: the layout has {} parts, which {} stages cannot share", source, grid.layers.size(),
                      pp);
    grid.shape.chunks = static_cast<int>(std::ssize(grid.layers) / pp);
    return;
  }
  const std::int64_t counted = layers + (counts_embedding ? 1 : 0) + (counts_loss ? 1 : 0);
  if (chunks) grid.shape.chunks = static_cast<int>(*chunks);
  if (each && counted % (*each * pp) == 0)
    grid.shape.chunks = static_cast<int>(std::min<std::int64_t>(counted / (*each * pp), 10'000));
  const std::int64_t parts = std::int64_t{pp} * grid.shape.chunks;
  if (first || last) {
    const std::int64_t others = pp - (first ? 1 : 0) - (last ? 1 : 0);
    const std::int64_t rest = layers - first.value_or(0) - last.value_or(0);
    if (grid.shape.chunks > 1 || others < 1 || rest < 1 || rest % others != 0)
      throw UserError("{}: {} layers cannot be dealt to {} stages of which the first has {} and the last {}",
                      source, layers, parts, first.value_or(0), last.value_or(0));
    grid.layers.assign(static_cast<std::size_t>(std::min<std::int64_t>(pp, 10'000)), rest / others);
    if (first) grid.layers.front() = *first;
    if (last) grid.layers.back() = *last;
    return;
  }
  if (counted % parts != 0)
    throw UserError("{}: {} layers do not divide by {} stages x {} chunks", source, counted, pp,
                    grid.shape.chunks);
  if (!counts_embedding && !counts_loss) return;
  grid.layers.assign(static_cast<std::size_t>(std::min(parts, counted)), counted / parts);
  grid.layers.front() -= counts_embedding ? 1 : 0;
  grid.layers.back() -= counts_loss ? 1 : 0;
}

std::int64_t started_devices(const LaunchLine& line, const std::string& source,
                             const ImportRequest& request) {
  if (request.devices) return *request.devices;
  ArgumentList a(line.launcher, source);
  const auto each = a.count("--nproc-per-node", 1, kMostPlanDevices);
  const auto nodes = a.count("--nnodes", 1, kMostPlanDevices);
  if (!each)
    throw UserError(
        "{}: how many devices it starts is not in it (torchrun --nproc-per-node); give --devices N", source);
  return *each * nodes.value_or(1);
}

ImportedGrid grid_from_flags(ArgumentList& a, const std::string& source, const ImportRequest& request,
                             const ModelSpec& model, std::vector<std::string>& notes) {
  ImportedGrid grid;
  LayerStrategy& s = grid.shape.strategy;
  const auto size = [&](const char* flag) {
    return static_cast<int>(a.count(flag, 1, kMostPlanDevices).value_or(1));
  };
  s.tp = size("--tensor-model-parallel-size");
  grid.shape.pp = size("--pipeline-model-parallel-size");
  s.cp = size("--context-parallel-size");
  s.ep = size("--expert-model-parallel-size");
  s.sequence_parallel = a.has("--sequence-parallel") && s.tp > 1;
  read_stages(a, source, model.layers, grid);
  if (grid.shape.chunks > 1) grid.shape.schedule = Schedule::interleaved;
  read_sharding(a, source, s);
  read_recompute(a, source, grid, notes);
  read_precision(a, grid);
  grid.has_stages_inside = a.has("--use-tp-pp-dp-mapping");
  grid.shape.microbatch = static_cast<int>(a.count("--micro-batch-size", 1, 1'000'000).value_or(1));
  const auto batch = a.count("--global-batch-size", 1, 1'000'000'000'000);
  grid.shape.batch = request.batch ? *request.batch : batch.value_or(0);
  const auto length = a.count("--seq-length", 1, 1'000'000'000'000);
  grid.shape.sequence_length =
      request.sequence_length ? *request.sequence_length : length.value_or(model.max_positions);
  if (a.has("--rampup-batch-size"))
    notes.emplace_back("the batch grows during the run; the plan is for its final size");
  return grid;
}

// Flags that a plan has no word for, where they ask for something else than it does.
void note_differences(ArgumentList& a, const ImportedGrid& grid, std::vector<std::string>& notes) {
  if (const auto name = a.text("--optimizer"); name && *name != "adam")
    notes.push_back(fmt::format("memory is counted for Adam's state, not for that of {}", in_quotes(*name)));
  if (const auto part = a.number("--optimizer-offload-fraction"); part && *part < 1)
    notes.push_back(fmt::format("all of the optimizer's state is offloaded, not {} of it", *part));
  if (const auto part = a.number("--rotary-percent"); part && *part != 1)
    notes.push_back(fmt::format("rotary positions turn whole heads, not {} of them", *part));
  if (const auto way = a.text("--cp-comm-type"); way && *way != "p2p")
    notes.push_back(fmt::format("keys and values go round a ring, not by {}", in_quotes(*way)));
  const auto group = a.count("--microbatch-group-size-per-virtual-pipeline-stage");
  if (group && *group != grid.shape.pp)
    notes.push_back(
        fmt::format("micro-batches are interleaved in groups of {}, not of {}", grid.shape.pp, *group));
}

void list_arguments(const ArgumentList& a, ImportedPlan& imported) {
  for (const ArgumentList::Argument& argument : a.all())
    (argument.is_understood             ? imported.understood
     : is_without_matter(argument.flag) ? imported.ignored
                                        : imported.unknown)
        .push_back(shown(argument));
}

}  // namespace

void import_megatron(std::string_view text, const std::string& source, const ImportRequest& request,
                     ImportedPlan& imported) {
  const LaunchLine line = launch_line(text, source);
  ArgumentList a(line.arguments, source);
  const bool is_bert = !line.launcher.empty() && ends_with(line.launcher.back(), "pretrain_bert.py");
  imported.model = imported_model(a, source, request, is_bert, imported.notes);
  ImportedGrid grid = grid_from_flags(a, source, request, imported.model, imported.notes);
  grid.devices = started_devices(line, source, request);
  const std::int64_t group = std::int64_t{grid.shape.pp} * grid.shape.strategy.tp;
  const auto copies = a.count("--num-distributed-optimizer-instances", 1, kMostPlanDevices);
  if (copies && *copies > 1 && grid.shape.strategy.zero > 0)
    grid.shape.strategy.shard_group =
        static_cast<int>(std::max<std::int64_t>(1, grid.devices / group / *copies));
  imported.plan = build_imported(grid, imported.model, source);
  note_differences(a, grid, imported.notes);
  list_arguments(a, imported);
}

}  // namespace optimus
