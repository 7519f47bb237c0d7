// See runs.h.
#include "simulate/runs.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "layout/layout.h"
#include "plan/validate.h"
#include "simulate/run_vocabulary.h"

namespace optimus {
namespace {

// Reads the cells of one row and records which fields were filled in. Throws UserError, and the message
// becomes the reason for skipping the row.
class RowReader {
 public:
  RowReader(const CsvTable& table, std::size_t row, MeasuredRun& measured)
      : table_(table), row_(row), measured_(measured) {}

  const std::string& text(std::string_view column) const { return table_.cell(row_, column); }
  bool has_value(std::string_view column) const { return !text(column).empty(); }

  std::optional<double> number(std::string_view column) const {
    const std::string& cell = text(column);
    if (cell.empty()) return std::nullopt;
    double value = 0;
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (error != std::errc() || end != cell.data() + cell.size() || !std::isfinite(value))
      throw UserError("{}: expected a number, got {}", column, in_quotes(cell));
    if (value < 0) throw UserError("{}: expected a non-negative number, got {}", column, cell);
    return value;
  }
  std::optional<std::int64_t> count(std::string_view column) const {
    const std::optional<double> value = number(column);
    if (!value) return std::nullopt;
    if (*value != std::floor(*value) || *value < 1 || *value > 1e9)
      throw UserError("{}: expected an integer from 1 to a billion, got {}", column, text(column));
    return static_cast<std::int64_t>(*value);
  }
  std::int64_t count_or(std::string_view column, std::int64_t default_value) {
    if (const auto value = count(column)) return *value;
    record_filled(column, std::to_string(default_value));
    return default_value;
  }
  std::int64_t required_count(std::string_view column) const {
    if (const auto value = count(column)) return *value;
    throw UserError("{} is missing", column);
  }
  void record_filled(std::string_view column, const std::string& value) {
    measured_.filled_fields.push_back(fmt::format("{} {}", column, value));
  }

 private:
  const CsvTable& table_;
  const std::size_t row_;
  MeasuredRun& measured_;
};

// A number of heads for models that do not specify it. It results in a head dimension near 128, and it is a
// multiple of 32 if possible, otherwise of tp.
std::int64_t guess_num_heads(std::int64_t hidden, std::int64_t tp) {
  std::int64_t best_num_heads = 0;
  for (const std::int64_t multiple : {std::int64_t{32}, tp})
    for (std::int64_t width = 64; width <= 256 && (multiple == 32 || best_num_heads == 0); ++width) {
      const std::int64_t heads = hidden / width;
      if (hidden % width != 0 || heads % multiple != 0) continue;
      if (best_num_heads == 0 || std::abs(width - 128) < std::abs(hidden / best_num_heads - 128))
        best_num_heads = heads;
    }
  if (best_num_heads == 0)
    throw UserError("heads is missing, and no common number of heads fits hidden {} and tp {}", hidden, tp);
  return best_num_heads;
}

ModelSpec model_of(RowReader& row, std::int64_t tp, const Software& software, bool is_mixture) {
  const std::string name = lower(row.text("model_name"));
  // All MoE models have the structure of Llama.
  ModelSpec model = model_without_dimensions(is_mixture ? "llama" : name, row.count("ffn").value_or(0),
                                             row.count("hidden").value_or(0));
  const std::optional<ModelSpec> named_model = model_by_name(name);
  const auto dimension = [&](std::string_view column, std::int64_t ModelSpec::*member) -> std::int64_t {
    if (const auto value = row.count(column)) return *value;
    if (!named_model) return 0;
    row.record_filled(column, std::to_string((*named_model).*member));
    return (*named_model).*member;
  };
  model.name = row.text("model_name");
  model.hidden = dimension("hidden", &ModelSpec::hidden),
  model.layers = dimension("layers", &ModelSpec::layers);
  model.heads = dimension("heads", &ModelSpec::heads),
  model.kv_heads = dimension("kv_heads", &ModelSpec::kv_heads);
  model.ffn = dimension("ffn", &ModelSpec::ffn), model.vocab = dimension("vocab", &ModelSpec::vocab);
  if (model.hidden == 0) throw UserError("the model's shape is missing, and its name is unknown");
  if (model.ffn == 0) row.record_filled("ffn", std::to_string(model.ffn = 4 * model.hidden));
  if (model.vocab == 0) row.record_filled("vocab", std::to_string(model.vocab = 50257));
  if (model.heads == 0)
    row.record_filled("heads", std::to_string(model.heads = guess_num_heads(model.hidden, tp)));
  if (model.kv_heads == 0) row.record_filled("kv_heads", std::to_string(model.kv_heads = model.heads));
  if (model.hidden > 1'000'000 || model.ffn > 10'000'000 || model.vocab > 10'000'000 || model.heads > 100'000)
    throw UserError("the model is implausibly large");
  if (model.kv_heads > model.heads || model.heads % model.kv_heads != 0)
    throw UserError("kv_heads: expected a divisor of heads {}, got {}", model.heads, model.kv_heads);
  model.head_dim = named_model && named_model->hidden == model.hidden
                       ? named_model->head_dim
                       : std::max<std::int64_t>(1, model.hidden / model.heads);
  if (pads_vocabulary(software)) {
    const std::int64_t step = 128 * tp;
    model.vocab = (model.vocab + step - 1) / step * step;
  }
  if (model.layers == 0) {
    const auto parameters = row.number("params_b");
    if (!parameters) throw UserError("the number of layers is missing");
    const double per_layer = static_cast<double>(model.hidden) *
                             (2.0 * static_cast<double>(model.query_width() + model.kv_width()) +
                              (model.is_gated ? 3.0 : 2.0) * static_cast<double>(model.ffn));
    const double remainder = *parameters * 1e9 - static_cast<double>(model.vocab * model.hidden);
    model.layers = std::max<std::int64_t>(1, std::llround(remainder / per_layer));
    row.record_filled("layers", std::to_string(model.layers));
  }
  if (model.layers > 10'000) throw UserError("layers: expected at most 10000, got {}", model.layers);
  return model;
}

// Reads the experts of a row. Properties that the table omits come from moe_by_name().
void read_experts(RowReader& row, ModelSpec& model) {
  const KnownMoe named_moe = moe_by_name(lower(row.text("model_name")));
  model.latent = named_moe.latent;
  Mixture& m = model.mixture;
  m.experts = row.required_count("experts"), m.experts_per_token = row.required_count("experts_per_token");
  m.ffn = row.count("moe_ffn").value_or(model.ffn);
  m.shared_ffn = named_moe.shared_ffn, m.first_layer = std::min(named_moe.first_layer, model.layers - 1);
  const double elements = static_cast<double>(m.experts) * static_cast<double>(m.ffn) *
                          static_cast<double>(model.hidden) * static_cast<double>(model.layers);
  if (m.experts_per_token > m.experts || elements > 1e15)
    throw UserError("experts {}, experts_per_token {}, moe_ffn {} are implausibly large", m.experts,
                    m.experts_per_token, m.ffn);
  if (named_moe.head_dim > 0) model.head_dim = named_moe.head_dim;
  if (m.shared_ffn > 0) row.record_filled("shared_ffn", std::to_string(m.shared_ffn));
}

struct Split {
  std::int64_t devices = 1, tp = 1, pp = 1, vpp = 1, cp = 1, dp = 1, ep = 1;
};

Split split_of(RowReader& row, bool is_mixture) {
  Split split;
  split.devices = row.required_count("n_gpus");
  split.tp = row.count_or("tp", 1), split.pp = row.count_or("pp", 1), split.cp = row.count_or("cp", 1);
  if (row.has_value("vpp")) split.vpp = *row.count("vpp");
  if (split.devices > kMaxDevices)
    throw UserError("n_gpus: expected at most {}, got {}", kMaxDevices, split.devices);
  if (split.tp > split.devices || split.pp > split.devices || split.cp > split.devices)
    throw UserError("tp {}, pp {} or cp {} is more than all {} devices", split.tp, split.pp, split.cp,
                    split.devices);
  const std::int64_t replica = split.tp * split.pp * split.cp;
  if (split.devices % replica != 0)
    throw UserError("tp {} x pp {} x cp {} does not divide {} devices", split.tp, split.pp, split.cp,
                    split.devices);
  split.dp = split.devices / replica;
  if (is_mixture) split.ep = row.count_or("ep", 1);
  if (split.devices / split.pp % split.ep != 0)
    throw UserError("ep {} does not divide the {} devices of a stage", split.ep, split.devices / split.pp);
  return split;
}

LayerStrategy read_strategy(RowReader& row, const Split& split, const Software& software,
                            std::int64_t sequence_length) {
  LayerStrategy strategy;
  strategy.tp = static_cast<int>(split.tp), strategy.cp = static_cast<int>(split.cp);
  strategy.ep = static_cast<int>(split.ep);
  const Sharding sharding = sharding_of(row.text("zero_stage_or_fsdp"), software);
  strategy.zero = sharding.zero;
  if (sharding.is_default) row.record_filled("zero_stage_or_fsdp", fmt::format("zero{}", sharding.zero));
  const std::int64_t num_sharing_devices = split.dp * split.cp;
  if (sharding.group > 0 && strategy.zero > 0 && num_sharing_devices % sharding.group == 0 &&
      sharding.group < num_sharing_devices)
    strategy.shard_group = sharding.group;
  const std::string& parallel = row.text("seq_parallel");
  strategy.sequence_parallel =
      split.tp > 1 && (parallel.empty() ? software.default_sequence_parallel : parallel == "yes");
  if (parallel.empty() && split.tp > 1)
    row.record_filled("seq_parallel", strategy.sequence_parallel ? "yes" : "no");
  const std::string recompute = lower(row.text("recompute"));
  if (recompute.empty()) {
    strategy.recompute = default_recompute(software, sequence_length);
    row.record_filled("recompute", optimus::text(strategy.recompute));
  } else {
    strategy.recompute = parse_recompute(recompute, "recompute");
  }
  return strategy;
}

std::int64_t microbatch_of(RowReader& row, const Split& split, std::optional<std::int64_t> batch,
                           std::int64_t sequence_length) {
  if (const auto microbatch = row.count("micro_batch")) return *microbatch;
  // With pipeline parallelism, a micro-batch has one sequence. Otherwise it has up to 8,192 tokens, and its
  // size divides the batch of a replica.
  std::int64_t size = split.pp > 1 ? 1 : std::max<std::int64_t>(1, 8192 / sequence_length);
  if (batch) {
    const std::int64_t batch_per_replica = std::max<std::int64_t>(1, *batch / split.dp);
    size = std::min(size, batch_per_replica);
    while (batch_per_replica % size != 0) --size;
  }
  row.record_filled("micro_batch", std::to_string(size));
  return size;
}

// Distributes all blocks evenly over chunks, counting embedding and head like layers.
void distribute_all_blocks(Plan& plan) {
  std::vector<Stage>& stages = plan.pipelines.front().stages;
  const auto chunks = static_cast<int>(stages.front().chunks.size());
  const auto num_stages = static_cast<int>(stages.size());
  const std::vector<Span> spans = split_evenly(plan.num_blocks, num_stages * chunks);
  for (int c = 0; c < chunks; ++c)
    for (int s = 0; s < num_stages; ++s) {
      BlockRun& run = stages[static_cast<std::size_t>(s)].chunks[static_cast<std::size_t>(c)].runs.front();
      const Span& span = spans[static_cast<std::size_t>(c * num_stages + s)];
      run.first_block = static_cast<int>(span.begin), run.count = static_cast<int>(span.size());
    }
}

Plan plan_of(RowReader& row, const ModelSpec& model, const Split& split, const Software& software,
             const NumberFormats& numbers) {
  std::int64_t sequence_length = 0;
  if (const auto seq_len = row.count("seq_len")) {
    sequence_length = *seq_len;
  } else {
    const std::optional<ModelSpec> named_model = model_by_name(lower(row.text("model_name")));
    if (!named_model) throw UserError("seq_len is missing");
    sequence_length = named_model->max_positions;
    row.record_filled("seq_len", std::to_string(sequence_length));
  }
  if (sequence_length > 100'000'000)
    throw UserError("seq_len: expected at most a hundred million, got {}", sequence_length);
  const std::optional<std::int64_t> given_batch = row.count("global_batch_seqs");
  const std::int64_t microbatch = microbatch_of(row, split, given_batch, sequence_length);
  // If only the throughput is known, a typical step with eight micro-batches per stage is assumed.
  const std::int64_t batch = given_batch.value_or(split.dp * microbatch * 8 * split.pp);
  if (!given_batch) row.record_filled("global_batch_seqs", std::to_string(batch));
  if (microbatch * split.dp > batch)
    throw UserError("micro_batch {} x dp {} is more than the batch of {}", microbatch, split.dp, batch);
  UniformPlan shape{.pp = static_cast<int>(split.pp), .dp = static_cast<int>(split.dp)};
  shape.strategy = read_strategy(row, split, software, sequence_length);
  shape.microbatch = static_cast<int>(microbatch);
  shape.batch = batch, shape.sequence_length = sequence_length;
  shape.chunks = static_cast<int>(split.pp > 1 ? split.vpp : 1);
  if (split.pp > 1 && !row.has_value("vpp")) {
    shape.chunks = default_chunks(software, model.layers, split.pp);
    row.record_filled("vpp", std::to_string(shape.chunks));
  }
  if (static_cast<std::int64_t>(shape.pp) * shape.chunks > model.layers + 2)
    throw UserError("pp {} x vpp {} is more than {} layers", shape.pp, shape.chunks, model.layers);
  shape.schedule = shape.chunks > 1 ? Schedule::interleaved : Schedule::one_f_one_b;
  shape.precision = numbers.precision;
  if (batch / (microbatch * split.dp) > 1'000'000)
    throw UserError("the step has more than a million micro-batches");
  Plan plan = uniform_plan(model, shape);
  if (shape.pp * shape.chunks > model.layers) distribute_all_blocks(plan);
  plan.accumulators = software.gradient_bytes == 4          ? Precision::fp32
                      : numbers.precision == Precision::fp8 ? Precision::fp32
                                                            : numbers.precision;
  return plan;
}

void read_measurements(RowReader& row, MeasuredRun& measured, const Plan& plan, std::int64_t devices) {
  const std::optional<double> seconds = row.number("iter_time_s"),
                              tokens = row.number("tokens_per_s_per_gpu");
  const double tokens_per_step = static_cast<double>(plan.batch) * static_cast<double>(plan.sequence_length);
  if (seconds && *seconds > 0)
    measured.seconds = *seconds;
  else if (tokens && *tokens > 0)
    measured.seconds = tokens_per_step / (*tokens * static_cast<double>(devices));
  const std::string& kind = row.text("memory_kind");
  const std::optional<double> memory = row.number("mem_gb_per_gpu");
  if (!memory || *memory <= 0) return;
  constexpr double kGiB = 1073741824.0, kGb = 1e9;
  if (kind == "allocated") measured.memory_kind = MemoryKind::allocated, measured.bytes = *memory * kGiB;
  if (kind == "reserved") measured.memory_kind = MemoryKind::reserved, measured.bytes = *memory * kGiB;
  if (kind == "nvidia-smi") measured.memory_kind = MemoryKind::process, measured.bytes = *memory * kGb;
}

std::string source_of(std::string_view id) { return std::string(id.substr(0, id.find('-'))); }

bool has_step_time(const RowReader& row) {
  return row.has_value("iter_time_s") || row.has_value("tokens_per_s_per_gpu");
}

void prepare_run(RowReader& row, MeasuredRun& measured, RunCase& run) {
  if (lower(row.text("notes")).find("lora") != std::string::npos)
    throw UserError("the run trains only adapters (LoRA)");
  if (!has_step_time(row))
    throw UserError("the row has neither step time nor tokens per second, only operations per second");
  const Software* software = find_software(row.text("software"));
  if (software == nullptr || software == &optimus_software())
    software = &guess_software(row.text("software"));
  if (row.text("software") != software->name) row.record_filled("software", std::string(software->name));
  run.software = *software;
  const NumberFormats numbers = number_formats_of(row.text("precision"), run.software);
  if (row.text("precision").empty()) row.record_filled("precision", optimus::text(numbers.precision));
  if (numbers.gradient_bytes > run.software.gradient_bytes) {
    // Gradients are accumulated in separate buffers, not in those that GEMMs write.
    run.software.gradient_bytes = numbers.gradient_bytes;
    run.software.copied_bytes = std::max(run.software.copied_bytes, 2);
  }
  run.format = numbers.format;
  const Split split = split_of(row, measured.is_mixture);
  run.model = model_of(row, split.tp, run.software, measured.is_mixture);
  if (measured.is_mixture) {
    read_experts(row, run.model);
    run.software.balances_experts = lower(row.text("notes")).find("balanced") != std::string::npos;
    if (run.software.balances_experts) row.record_filled("experts' load", "even");
  }
  run.plan = plan_of(row, run.model, split, run.software, numbers);
  if (measured.is_mixture && split.tp > 1)
    for (Stage& stage : run.plan.pipelines.front().stages)
      for (Chunk& chunk : stage.chunks)
        for (BlockRun& run_of_blocks : chunk.runs) run_of_blocks.strategy.sequence_parallel = true;
  if (const auto problem = find_problem(run.plan)) throw UserError("{}", *problem);
  const int per_node =
      static_cast<int>(std::min<std::int64_t>(row.count_or("gpus_per_node", 8), split.devices));
  run.cluster.emplace(cluster_by_gpu_name(row.text("gpu"), row.text("network"), per_node,
                                          static_cast<int>(split.devices),
                                          measured.is_mixture ? static_cast<int>(split.ep) : 1));
  run.map = DeviceMap::identity(static_cast<int>(split.devices));
  read_measurements(row, measured, run.plan, split.devices);
  if (measured.seconds <= 0) throw UserError("the measured time is 0");
  run.simulator.emplace(run.setup());
}

}  // namespace

Bytes RunCase::memory(MemoryKind kind, const Constants& constants) const {
  const Pipeline& pipeline = plan.pipelines.front();
  const LayerStrategy& s = pipeline.stages.front().chunks.front().runs.front().strategy;
  const int dp = data_parallel(pipeline.stages.front(), s);
  const int groups = (s.tp > 1) + (dp > 1) + (s.cp > 1) + (pipeline.stages.size() > 1);
  Bytes max_bytes{};
  // The fullest stage is the first, the second or the last.
  for (int stage = 0; stage < std::ssize(pipeline.stages); ++stage)
    if (stage < 2 || stage + 1 == std::ssize(pipeline.stages))
      max_bytes = std::max(max_bytes,
                           measured_as(kind, stage_memory(setup(), 0, stage, constants), groups, constants));
  return max_bytes;
}

Run read_run(const CsvTable& table, std::size_t number) {
  Run result;
  MeasuredRun& measured = result.measured;
  RowReader row(table, number, measured);
  measured.id = row.text("id"), measured.source = source_of(measured.id);
  measured.software = row.text("software"), measured.sweep = row.text("sweep");
  measured.is_mixture = row.has_value("experts") && row.text("experts") != "0";
  auto run = std::make_unique<RunCase>();
  try {
    prepare_run(row, measured, *run);
    result.run = std::move(run);
    if (measured.is_mixture) measured.skip_reason = "an MoE model, reported separately";
  } catch (const UserError& error) {
    measured.skip_reason = error.what();
  }
  return result;
}

std::vector<Run> read_runs(const CsvTable& table) {
  std::vector<Run> runs;
  for (std::size_t row = 0; row < table.rows.size(); ++row) runs.push_back(read_run(table, row));
  return runs;
}

}  // namespace optimus
