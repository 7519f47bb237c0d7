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
    "--apply-",
    "--async-",
    "--attention-backend",
    "--attention-softmax-in-fp32",
    "--auto-detect-ckpt-format",
    "--bias-",
    "--calculate-per-token-loss",
    "--check-",
    "--ckpt-",
    "--clip-grad",
    "--cp-comm-type",
    "--cross-entropy-",
    "--data-cache-path",
    "--data-path",
    "--dataloader-type",
    "--ddp-",
    "--decoupled-",
    "--deterministic-mode",
    "--disable-",
    "--dist-ckpt-",
    "--distributed-backend",
    "--distributed-timeout-minutes",
    "--empty-unused-memory-level",
    "--enable-",
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
    "--init-method-",
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
    "--microbatch-group-size-per-virtual-pipeline-stage",
    "--min-loss-scale",
    "--min-lr",
    "--mock-data",
    "--no-bias-",
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
    "--optimizer",
    "--optimizer-offload-fraction",
    "--override-",
    "--overlap-",
    "--profile",
    "--profile-",
    "--rerun-",
    "--reset-",
    "--rotary-percent",
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

void read_rope(ArgumentList& a, ModelSpec& model) {
  if (model.positions != PositionKind::rope) return;
  model.rope_theta = static_cast<double>(a.count("--rotary-base").value_or(10000));
  model.rope_scaling = {};
  const bool is_scaled = a.has("--use-rope-scaling");
  const double factor = a.number("--rope-scaling-factor").value_or(8);
  if (is_scaled) model.rope_scaling = {RopeScalingKind::llama3, factor, 1, 4, 8192};
  if (const auto linear = a.count("--rotary-seq-len-interpolation-factor"))
    model.rope_scaling = {RopeScalingKind::linear, static_cast<double>(*linear), 1, 4, 0};
}

void read_biases(ArgumentList& a, ModelSpec& model) {
  const bool has_all = !a.has("--disable-bias-linear");
  model.has_out_bias = model.has_mlp_bias = has_all;
  model.has_qkv_bias = has_all || a.has("--add-qkv-bias");
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
  model.norm_eps = a.number("--norm-epsilon").value_or(1e-5);
  read_rope(a, model);
  read_biases(a, model);
  model.is_tied = !a.has("--untie-embeddings-and-output-weights");
  model.init_range = a.number("--init-method-std").value_or(0.02);
  model.attention_dropout = a.number("--attention-dropout").value_or(0.1);
  model.hidden_dropout = model.embedding_dropout = a.number("--hidden-dropout").value_or(0.1);
  if (const std::string name = preset_name(model); !name.empty()) model.name = name;
  return model;
}

ModelSpec imported_model(ArgumentList& a, const std::string& source, const ImportRequest& request,
                         bool is_bert) {
  ModelSpec model;
  if (a.has("--num-experts"))
    throw UserError(
        "{}: --num-experts: mixtures of experts are not imported; remove it to plan the dense part", source);
  if (request.model) {
    model = *request.model;
    if (model.is_custom())
      throw UserError("{}: {} is a model of custom blocks, which Megatron-LM does not train", source,
                      model.name);
    (void)family_of(a, is_bert);
    read_dimensions(a, model, true);
    for (const char* known :
         {"--vocab-size", "--untie-embeddings-and-output-weights", "--norm-epsilon", "--disable-bias-linear",
          "--rotary-base", "--use-rope-scaling", "--rope-scaling-factor"})
      (void)a.has(known);
    if (request.vocab) model.vocab = *request.vocab;
  } else {
    model = model_from_flags(a, source, request, is_bert);
  }
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
  imported.model = imported_model(a, source, request, is_bert);
  ImportedGrid grid = grid_from_flags(a, source, request, imported.model, imported.notes);
  grid.devices = started_devices(line, source, request);
  const std::int64_t group = std::int64_t{grid.shape.pp} * grid.shape.strategy.tp;
  const auto copies = a.count("--num-distributed-optimizer-instances", 1, kMostPlanDevices);
  if (copies && *copies > 1 && grid.shape.strategy.zero > 0)
    grid.shape.strategy.shard_group =
        static_cast<int>(std::max<std::int64_t>(1, grid.devices / group / *copies));
  imported.plan = build_imported(grid, imported.model, source);
  list_arguments(a, imported);
}

}  // namespace optimus
