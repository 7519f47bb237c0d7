// Converts a Megatron-LM command line to a plan: first the model that its flags describe
// (import_megatron_model.cpp), then the grid. docs/use/export.md has the table. The supported flags come from
// megatron/training/arguments.py, including older spellings.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "plan/fp8.h"
#include "plan/import_arguments.h"
#include "plan/import_build.h"
#include "plan/import_megatron.h"
#include "plan/shell_words.h"

namespace optimus {
namespace {

// Flags without effect on the plan: optimizer, data, files, logs, kernels. A name that ends in '-' matches
// all flags with this prefix.
constexpr std::array kIrrelevantFlags = {
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
    "--fp8-interval",
    "--fp8-margin",
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

bool is_irrelevant(const std::string& flag) {
  return std::any_of(kIrrelevantFlags.begin(), kIrrelevantFlags.end(), [&](std::string_view known) {
    return ends_with(known, "-") ? starts_with(flag, known) : flag == known;
  });
}

// The blocks that compute in fp8: all layers, or all except some at both ends. An empty list means the plan's
// default, which excludes the first and the last layer. nullopt means that no layer computes in fp8.
std::optional<std::vector<int>> read_fp8_blocks(ArgumentList& flags, std::int64_t layers) {
  const bool has_bf16_ends = flags.has_flag("--first-last-layers-bf16");
  const std::int64_t first = flags.count("--num-layers-at-start-in-bf16", 0, 10'000).value_or(1),
                     last = flags.count("--num-layers-at-end-in-bf16", 0, 10'000).value_or(1);
  std::vector<int> blocks;
  if (has_bf16_ends && first == 1 && last == 1) return blocks;
  for (std::int64_t layer = has_bf16_ends ? first : 0; layer < layers - (has_bf16_ends ? last : 0); ++layer)
    blocks.push_back(static_cast<int>(layer) + 1);
  return blocks.empty() ? std::nullopt : std::optional(blocks);
}

void read_fp8_scales(ArgumentList& flags, ImportedGrid& grid, std::vector<std::string>& notes) {
  const std::string recipe = flags.text("--fp8-recipe").value_or("delayed");
  const bool uses_window = flags.text("--fp8-amax-compute-algo").value_or("most_recent") == "max";
  const std::int64_t window = flags.count("--fp8-amax-history-len", 1, 1'000'000'000).value_or(1);
  if (grid.shape.precision != Precision::fp8) return;
  const LayerStrategy& s = grid.shape.strategy;
  if (recipe == "delayed") {
    grid.fp8.window = uses_window ? static_cast<int>(std::min<std::int64_t>(window, kMaxFp8Window)) : 1;
    if (uses_window && window > kMaxFp8Window)
      notes.push_back(fmt::format("the amax history covers {} steps instead of {}", kMaxFp8Window, window));
  } else if (recipe == "tensorwise" && s.tp == 1 && s.cp == 1) {
    grid.fp8.scaling = Fp8Scaling::current;
  } else {
    notes.push_back(fmt::format(
        "fp8 scales come from the amax of whole tensors over the last {} steps, not from recipe {}{}",
        grid.fp8.window, in_quotes(recipe), recipe == "tensorwise" ? ", which needs tp 1 and cp 1" : ""));
  }
}

void read_precision(ArgumentList& flags, std::int64_t layers, ImportedGrid& grid,
                    std::vector<std::string>& notes) {
  const std::string format = flags.text("--fp8-format").value_or("");
  const bool is_hybrid = flags.has_flag("--fp8-hybrid"),
             is_e4m3 = flags.has_flag("--fp8-e4m3") || format == "e4m3";
  const auto blocks = read_fp8_blocks(flags, layers);
  const bool is_fp8 = (!format.empty() || is_hybrid || is_e4m3) && blocks;
  const bool is_fp16 = flags.has_flag("--fp16"), is_bf16 = flags.has_flag("--bf16");
  const bool accumulates_in_fp32 = flags.has_flag("--accumulate-allreduce-grads-in-fp32"),
             accumulates_in_bf16 = flags.has_flag("--grad-reduce-in-bf16");
  grid.shape.precision = is_fp8    ? Precision::fp8
                         : is_fp16 ? Precision::fp16
                         : is_bf16 ? Precision::bf16
                                   : Precision::fp32;
  if (grid.shape.precision == Precision::fp16 && !accumulates_in_fp32) grid.accumulators = Precision::fp16;
  if (grid.shape.precision == Precision::bf16 && accumulates_in_bf16) grid.accumulators = Precision::bf16;
  if (is_fp8) grid.fp8.blocks = *blocks;
  if (is_fp8 && is_e4m3) notes.emplace_back("gradients are in e5m2 in fp8 GEMMs, not in e4m3");
  read_fp8_scales(flags, grid, notes);
}

void read_recompute(ArgumentList& flags, const std::string& source, ImportedGrid& grid,
                    std::vector<std::string>& notes) {
  LayerStrategy& s = grid.shape.strategy;
  std::string granularity = flags.text("--recompute-granularity").value_or("");
  if (flags.has_flag("--recompute-activations")) granularity = "selective";
  const std::string method = flags.text("--recompute-method").value_or("uniform");
  const auto layers = static_cast<int>(flags.count("--recompute-num-layers", 1, 10'000).value_or(1));
  const std::vector<std::string> modules = flags.values_of("--recompute-modules");
  if (granularity == "selective") {
    s.recompute = RecomputeMode::selective;
    if (modules != std::vector<std::string>{"layernorm"})
      notes.emplace_back(
          "selective recompute covers norms and activation functions; attention scores are never saved");
  } else if (granularity == "full") {
    s.recompute = RecomputeMode::full;
    (method == "block" ? grid.recomputed_layers : s.recompute_layers) = layers;
  } else if (!granularity.empty()) {
    throw UserError("{}: --recompute-granularity: expected full or selective, got {}", source,
                    in_quotes(granularity));
  }
}

void read_sharding(ArgumentList& flags, const std::string& source, LayerStrategy& s) {
  static const std::vector<std::string> strategies = {"no_shard", "optim", "optim_grads",
                                                      "optim_grads_params"};
  const bool is_distributed = flags.has_flag("--use-distributed-optimizer");
  const bool is_fsdp = flags.has_flag("--use-megatron-fsdp") || flags.has_flag("--use-custom-fsdp");
  const std::string word = flags.text("--data-parallel-sharding-strategy").value_or("optim_grads_params");
  const auto match = std::find(strategies.begin(), strategies.end(), word);
  if (match == strategies.end())
    throw UserError("{}: --data-parallel-sharding-strategy {} is not one of {}", source, in_quotes(word),
                    join(strategies, ", "));
  s.zero = is_distributed ? 1 : 0;
  if (is_fsdp) s.zero = static_cast<int>(match - strategies.begin());
  if (flags.has_flag("--use-torch-fsdp2"))
    s.zero = flags.has_flag("--torch-fsdp2-no-reshard-after-forward") ? 2 : 3;
  s.offload = flags.has_flag("--optimizer-cpu-offload");
}

// Reads the number of layers of each chunk if the flags make the chunks unequal.
void read_stages(ArgumentList& flags, const std::string& source, std::int64_t layers, ImportedGrid& grid) {
  const int pp = grid.shape.pp;
  const auto first = flags.count("--decoder-first-pipeline-num-layers"),
             last = flags.count("--decoder-last-pipeline-num-layers"),
             layers_per_chunk = flags.count("--num-layers-per-virtual-pipeline-stage"),
             chunks = flags.count("--num-virtual-stages-per-pipeline-rank", 1, 10'000);
  const bool counts_embedding = flags.has_flag("--account-for-embedding-in-pipeline-split"),
             counts_loss = flags.has_flag("--account-for-loss-in-pipeline-split");
  if (const auto layout = flags.text("--pipeline-model-parallel-layout")) {
    grid.layers = parse_layout(*layout, source + ": --pipeline-model-parallel-layout");
    if (std::ssize(grid.layers) % pp != 0)
      throw UserError("{}: the layout's {} chunks cannot be divided evenly among {} stages", source,
                      grid.layers.size(), pp);
    grid.shape.chunks = static_cast<int>(std::ssize(grid.layers) / pp);
    return;
  }
  const std::int64_t num_counted = layers + (counts_embedding ? 1 : 0) + (counts_loss ? 1 : 0);
  if (chunks) grid.shape.chunks = static_cast<int>(*chunks);
  if (layers_per_chunk && num_counted % (*layers_per_chunk * pp) == 0)
    grid.shape.chunks =
        static_cast<int>(std::min<std::int64_t>(num_counted / (*layers_per_chunk * pp), 10'000));
  const std::int64_t parts = std::int64_t{pp} * grid.shape.chunks;
  if (first || last) {
    const std::int64_t num_middle_stages = pp - (first ? 1 : 0) - (last ? 1 : 0);
    const std::int64_t middle_layers = layers - first.value_or(0) - last.value_or(0);
    if (grid.shape.chunks > 1 || num_middle_stages < 1 || middle_layers < 1 ||
        middle_layers % num_middle_stages != 0)
      throw UserError(
          "{}: {} layers cannot be distributed over {} stages with {} layers in the first and {} in the last",
          source, layers, parts, first.value_or(0), last.value_or(0));
    grid.layers.assign(static_cast<std::size_t>(std::min<std::int64_t>(pp, 10'000)),
                       middle_layers / num_middle_stages);
    if (first) grid.layers.front() = *first;
    if (last) grid.layers.back() = *last;
    return;
  }
  if (num_counted % parts != 0)
    throw UserError("{}: {} layers are not divisible by {} stages x {} chunks", source, num_counted, pp,
                    grid.shape.chunks);
  if (!counts_embedding && !counts_loss) return;
  grid.layers.assign(static_cast<std::size_t>(std::min(parts, num_counted)), num_counted / parts);
  grid.layers.front() -= counts_embedding ? 1 : 0;
  grid.layers.back() -= counts_loss ? 1 : 0;
}

std::int64_t num_started_devices(const LaunchLine& line, const std::string& source,
                                 const ImportRequest& request) {
  if (request.devices) return *request.devices;
  ArgumentList flags(line.launcher, source);
  const auto per_node = flags.count("--nproc-per-node", 1, kMaxPlanDevices);
  const auto nodes = flags.count("--nnodes", 1, kMaxPlanDevices);
  if (!per_node)
    throw UserError("{}: the number of devices is missing (torchrun --nproc-per-node); specify --devices N",
                    source);
  return *per_node * nodes.value_or(1);
}

ImportedGrid grid_from_flags(ArgumentList& flags, const std::string& source, const ImportRequest& request,
                             const ModelSpec& model, std::vector<std::string>& notes) {
  ImportedGrid grid;
  LayerStrategy& s = grid.shape.strategy;
  const auto size = [&](const char* flag) {
    return static_cast<int>(flags.count(flag, 1, kMaxPlanDevices).value_or(1));
  };
  s.tp = size("--tensor-model-parallel-size");
  grid.shape.pp = size("--pipeline-model-parallel-size");
  s.cp = size("--context-parallel-size");
  s.ep = size("--expert-model-parallel-size");
  s.sequence_parallel = flags.has_flag("--sequence-parallel") && s.tp > 1;
  read_stages(flags, source, model.layers, grid);
  if (grid.shape.chunks > 1) grid.shape.schedule = Schedule::interleaved;
  read_sharding(flags, source, s);
  read_recompute(flags, source, grid, notes);
  read_precision(flags, model.layers, grid, notes);
  grid.stages_vary_before_replicas = flags.has_flag("--use-tp-pp-dp-mapping");
  grid.shape.microbatch = static_cast<int>(flags.count("--micro-batch-size", 1, 1'000'000).value_or(1));
  const auto batch = flags.count("--global-batch-size", 1, 1'000'000'000'000);
  grid.shape.batch = request.batch ? *request.batch : batch.value_or(0);
  const auto length = flags.count("--seq-length", 1, 1'000'000'000'000);
  grid.shape.sequence_length =
      request.sequence_length ? *request.sequence_length : length.value_or(model.max_positions);
  if (flags.has_flag("--rampup-batch-size"))
    notes.emplace_back("the batch grows during the run; the plan is for its final size");
  return grid;
}

// Adds notes for flags that a plan cannot express and whose value differs from the plan's behaviour.
void note_differences(ArgumentList& flags, const ImportedGrid& grid, std::vector<std::string>& notes) {
  if (const auto name = flags.text("--optimizer"); name && *name != "adam")
    notes.push_back(
        fmt::format("memory is computed for the optimizer state of Adam, not of {}", in_quotes(*name)));
  if (const auto fraction = flags.number("--optimizer-offload-fraction"); fraction && *fraction < 1)
    notes.push_back(fmt::format("the whole optimizer state is offloaded, not a fraction of {}", *fraction));
  if (const auto fraction = flags.number("--rotary-percent"); fraction && *fraction != 1)
    notes.push_back(
        fmt::format("rotary embeddings apply to all head dimensions, not to a fraction of {}", *fraction));
  if (const auto type = flags.text("--cp-comm-type"); type && *type != "p2p")
    notes.push_back(fmt::format("context parallelism uses ring attention, not {}", in_quotes(*type)));
  const auto group = flags.count("--microbatch-group-size-per-virtual-pipeline-stage");
  if (group && *group != grid.shape.pp)
    notes.push_back(
        fmt::format("micro-batches are interleaved in groups of {} instead of {}", grid.shape.pp, *group));
}

void list_arguments(const ArgumentList& flags, ImportedPlan& imported) {
  for (const ArgumentList::Argument& argument : flags.arguments())
    (argument.is_understood         ? imported.understood
     : is_irrelevant(argument.flag) ? imported.ignored
                                    : imported.unknown)
        .push_back(display_text(argument));
}

}  // namespace

void import_megatron(std::string_view text, const std::string& source, const ImportRequest& request,
                     ImportedPlan& imported) {
  const LaunchLine line = launch_line(text, source);
  ArgumentList flags(line.arguments, source);
  const bool is_bert = !line.launcher.empty() && ends_with(line.launcher.back(), "pretrain_bert.py");
  imported.model = imported_model(flags, source, request, is_bert, imported.notes);
  ImportedGrid grid = grid_from_flags(flags, source, request, imported.model, imported.notes);
  grid.devices = num_started_devices(line, source, request);
  const std::int64_t group = std::int64_t{grid.shape.pp} * grid.shape.strategy.tp;
  const auto copies = flags.count("--num-distributed-optimizer-instances", 1, kMaxPlanDevices);
  if (copies && *copies > 1 && grid.shape.strategy.zero > 0)
    grid.shape.strategy.shard_group =
        static_cast<int>(std::max<std::int64_t>(1, grid.devices / group / *copies));
  imported.plan = build_imported(grid, imported.model, source);
  note_differences(flags, grid, imported.notes);
  list_arguments(flags, imported);
}

}  // namespace optimus
