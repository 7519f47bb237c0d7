// Converts a DeepSpeed configuration to a plan. The file contains neither the model nor the number of
// devices, so both are part of the request. The value "auto", which Hugging Face fills in, is treated as
// absent. docs/use/export.md has the table of settings.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "plan/import_build.h"

namespace optimus {
namespace {

constexpr std::array kIrrelevantSections = {"optimizer",
                                            "scheduler",
                                            "gradient_clipping",
                                            "steps_per_print",
                                            "wall_clock_breakdown",
                                            "tensorboard",
                                            "wandb",
                                            "csv_monitor",
                                            "comet",
                                            "flops_profiler",
                                            "comms_logger",
                                            "dump_state",
                                            "prescale_gradients",
                                            "sparse_gradients",
                                            "gradient_predivide_factor",
                                            "checkpoint",
                                            "aio",
                                            "elasticity",
                                            "autotuning",
                                            "memory_breakdown",
                                            "compile",
                                            "timers",
                                            "data_efficiency",
                                            "communication_data_type",
                                            "zero_allow_untested_optimizer",
                                            "zero_force_ds_cpu_optimizer"};

// Finds members of the file by section and key, and records which of them were understood.
class ConfigReader {
 public:
  ConfigReader(const Json& document, const std::string& source) : view_(document, source) {}

  // Returns nullopt if the member is absent, null or "auto".
  std::optional<JsonView> find(const std::string& section, const std::string& key) {
    std::optional<JsonView> member = section.empty() ? view_ : view_.find(section);
    if (!member) return std::nullopt;
    member = member->find(key);
    if (!member) return std::nullopt;
    understood_.push_back(section.empty() ? key : section + "." + key);
    const bool is_auto = member->raw().is_string() && member->raw().get_ref<const std::string&>() == "auto";
    return is_auto ? std::nullopt : member;
  }
  std::optional<std::int64_t> count(const std::string& section, const std::string& key,
                                    std::int64_t smallest = 1, std::int64_t largest = 1'000'000'000) {
    const auto member = find(section, key);
    if (!member) return std::nullopt;
    return member->integer(smallest, largest);
  }
  bool is_on(const std::string& section) {
    const auto member = find(section, "enabled");
    return member && member->boolean();
  }

  void list_keys(ImportedPlan& imported) const {
    for (const auto& [name, member] : view_.members()) {
      const bool is_ignored_section = std::find(kIrrelevantSections.begin(), kIrrelevantSections.end(),
                                                name) != kIrrelevantSections.end();
      const bool is_section = member.raw().is_object();
      if (is_ignored_section) {
        imported.ignored.push_back(name);
      } else if (!is_section) {
        add_key(name, imported.unknown, imported);
      } else {
        // In a known section, all other keys only tune buckets and buffers.
        const bool is_known = std::any_of(
            understood_.begin(), understood_.end(),
            [&, section = name](const auto& known_key) { return starts_with(known_key, section + "."); });
        for (const auto& [key, value] : member.members())
          add_key(name + "." + key, is_known ? imported.ignored : imported.unknown, imported);
        if (member.raw().empty()) imported.ignored.push_back(name);
      }
    }
  }

 private:
  void add_key(const std::string& name, std::vector<std::string>& other_list, ImportedPlan& imported) const {
    const bool is_understood_key =
        std::find(understood_.begin(), understood_.end(), name) != understood_.end();
    (is_understood_key ? imported.understood : other_list).push_back(name);
  }

  JsonView view_;
  std::vector<std::string> understood_;
};

void read_zero(ConfigReader& file, std::int64_t group, LayerStrategy& s, std::vector<std::string>& notes) {
  s.zero = static_cast<int>(file.count("zero_optimization", "stage", 0, 3).value_or(0));
  if (const auto offload = file.find("zero_optimization", "offload_optimizer"))
    s.offload = s.zero > 0 && offload->text_or("device", "none") != "none";
  // MiCS groups (in DeepSpeed up to 0.18) share all of the state. The groups of hpZ share only a second copy
  // of the parameters.
  const auto mics_group = file.count("zero_optimization", "mics_shard_size", -1, kMaxPlanDevices),
             hpz_group = file.count("zero_optimization", "zero_hpz_partition_size", 1, kMaxPlanDevices);
  const std::int64_t shards = mics_group.value_or(0) > 0  ? *mics_group
                              : hpz_group.value_or(1) > 1 ? *hpz_group
                                                          : 0;
  if (s.zero < 3 || shards == 0 || shards >= group) return;
  s.shard_group = static_cast<int>(shards);
  if (mics_group.value_or(0) <= 0)
    notes.push_back(
        fmt::format("DeepSpeed gathers only the parameters within groups of {}; the plan shards all of the "
                    "state within these groups",
                    shards));
}

void read_recompute_sections(ConfigReader& file, std::int64_t layers, LayerStrategy& s) {
  const auto interval = file.count("pipeline", "activation_checkpoint_interval", 0, 10'000);
  const auto number = file.count("activation_checkpointing", "number_checkpoints", 0, 10'000);
  if (interval.value_or(0) > 0)
    s.recompute = RecomputeMode::full, s.recompute_layers = static_cast<int>(*interval);
  else if (number.value_or(0) > 0)
    s.recompute = RecomputeMode::full,
    s.recompute_layers = static_cast<int>((layers + *number - 1) / *number);
}

void read_types(ConfigReader& file, const std::string& source, ImportedGrid& grid) {
  const bool is_bf16 = file.is_on("bf16") || file.is_on("bfloat16"), is_fp16 = file.is_on("fp16");
  if (is_bf16 && is_fp16) throw UserError("{}: bf16 and fp16 are both enabled; enable only one", source);
  grid.shape.precision = is_bf16 ? Precision::bf16 : is_fp16 ? Precision::fp16 : Precision::fp32;
  if (const auto word = file.find("data_types", "grad_accum_dtype"))
    grid.accumulators = parse_precision(word->text(), word->location());
}

// DeepSpeed defines batch = micro-batch x accumulation steps x data-parallel ranks. Missing values are
// derived from the other values. The number of accumulation steps defaults to 1.
void read_batch(ConfigReader& file, const std::string& source, const ImportRequest& request, std::int64_t dp,
                ImportedGrid& grid) {
  const auto batch = file.count("", "train_batch_size", 1, 1'000'000'000'000);
  const auto micro = file.count("", "train_micro_batch_size_per_gpu", 1, 1'000'000);
  const auto steps = file.count("", "gradient_accumulation_steps", 1, 1'000'000'000);
  const std::int64_t total = request.batch ? *request.batch
                             : batch       ? *batch
                             : micro       ? *micro * steps.value_or(1) * dp
                                           : 0;
  if (total == 0)
    throw UserError(
        "{}: neither train_batch_size nor train_micro_batch_size_per_gpu is a number; specify --batch B",
        source);
  const std::int64_t parts = dp * steps.value_or(1);
  if (!micro && total % parts != 0)
    throw UserError("{}: a batch of {} is not divisible by {} accumulation steps x {} data-parallel ranks",
                    source, total, steps.value_or(1), dp);
  const std::int64_t microbatch = micro ? *micro : total / parts;
  if (microbatch > 1'000'000)
    throw UserError("{}: micro-batches of {} sequences exceed the limits of a plan", source, microbatch);
  if (!request.batch && batch && micro && steps && *micro * *steps * dp != *batch)
    throw UserError("{}: train_batch_size {} is not {} x {} accumulation steps x {} data-parallel ranks",
                    source, *batch, *micro, *steps, dp);
  grid.shape.microbatch = static_cast<int>(microbatch);
  grid.shape.batch = total;
}

}  // namespace

void import_deepspeed(std::string_view text, const std::string& source, const ImportRequest& request,
                      ImportedPlan& imported) {
  const Json document = parse_json(text, source);
  if (!request.model)
    throw UserError("{}: a DeepSpeed file does not name its model; specify --model M", source);
  if (!request.devices)
    throw UserError("{}: a DeepSpeed file does not specify the number of devices; specify --devices N",
                    source);
  imported.model = *request.model;
  if (request.vocab) imported.model.vocab = *request.vocab;
  if (imported.model.is_custom())
    throw UserError("{}: {} is a model of custom blocks; a transformer is required", source,
                    imported.model.name);
  ConfigReader file(document, source);
  ImportedGrid grid;
  LayerStrategy& s = grid.shape.strategy;
  const auto size = [&](const char* section, const char* key) {
    return static_cast<int>(file.count(section, key, 0, kMaxPlanDevices).value_or(1));
  };
  s.tp = std::max(1, size("tensor_parallel", "autotp_size"));
  s.cp = std::max(1, size("", "sequence_parallel_size"));
  grid.shape.pp = std::max(1, size("pipeline", "stages"));
  (void)file.find("", "data_parallel_size");
  (void)file.find("pipeline", "partition");
  grid.devices = *request.devices;
  const std::int64_t devices_per_replica = std::int64_t{s.tp} * s.cp * grid.shape.pp;
  read_zero(file, grid.devices / (std::int64_t{s.tp} * grid.shape.pp), s, imported.notes);
  read_recompute_sections(file, imported.model.layers, s);
  read_types(file, source, grid);
  read_batch(file, source, request, std::max<std::int64_t>(1, grid.devices / devices_per_replica), grid);
  grid.shape.sequence_length = request.sequence_length.value_or(imported.model.max_positions);
  if (!request.sequence_length)
    imported.notes.push_back(
        fmt::format("a DeepSpeed file has no sequence length; using the maximum of the model, {}",
                    imported.model.max_positions));
  imported.plan = build_imported(grid, imported.model, source);
  file.list_keys(imported);
}

}  // namespace optimus
