// Implements settings.h.
#include "settings/settings.h"

#include <cmath>
#include <ctime>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "data/open.h"
#include "elastic/preemption_notice.h"
#include "model/open.h"
#include "model/presets.h"
#include "plan/plan_json.h"
#include "plan/validate.h"
#include "schedule/sizes.h"
#include "settings/choose_plan.h"
#include "settings/demo_text.h"
#include "settings/save_rule.h"
#include "tokenizer/open_tokenizer.h"

namespace optimus {
namespace {

// The defaults without --model. They are small enough for visible progress within two minutes on two cores.
constexpr const char* kDemoModel = "gpt2";
constexpr ModelOverrides kDemoShape{.layers = 4, .hidden = 128, .heads = 4, .max_positions = 128};
constexpr std::int64_t kDemoSteps = 1000, kDemoBatch = 8, kDemoSequence = 128;
constexpr double kDemoRate = 5e-3;

bool is_demo(const TrainOptions& options) { return options.model.model.empty(); }

void check_option_ranges(const TrainOptions& o) {
  const auto at_least = [](const char* name, const std::optional<std::int64_t>& value,
                           std::int64_t min_value) {
    if (value && (*value < min_value || *value > 1'000'000'000))
      throw UsageError("--{}: expected {} to 1,000,000,000, got {}", name, min_value, *value);
  };
  at_least("steps", o.steps, 1), at_least("batch", o.batch, 1), at_least("microbatch", o.microbatch, 1);
  at_least("seq", o.sequence_length, 1), at_least("warmup", o.warmup, 0),
      at_least("eval-every", o.eval_every, 0);
  at_least("devices", o.devices, 1), at_least("threads", o.threads, 0),
      at_least("sample", o.sample_tokens, 0);
  at_least("keep-last", o.keep_last, 0), at_least("keep-every", o.keep_every, 0);
  parse_save_rule(o.save_every, "--save-every");
  const auto within = [](const char* name, double value, double min_value, double max_value) {
    if (!(value >= min_value && value <= max_value))
      throw UsageError("--{}: expected {} to {}, got {}", name, min_value, max_value, value);
  };
  within("lr", o.learning_rate.value_or(0), 0, 1e3), within("min-lr", o.min_learning_rate_fraction, 0, 1);
  within("dropout", o.dropout.value_or(0), 0, 0.99), within("validation", o.validation, 0, 0.9);
  within("weight-decay", o.weight_decay, 0, 10), within("clip", o.clip, 0, 1e9),
      within("epsilon", o.epsilon, 0, 1);
  within("beta1", o.beta1, 0, 0.999999), within("beta2", o.beta2, 0, 0.999999999);
  if (o.devices.value_or(1) > 4096)
    throw UsageError("--devices: expected at most 4096 workers on one machine, got {}", *o.devices);
}

// Sets the value if it was not given, and records in the table that it was chosen automatically.
template <typename T>
T choose(OptionTable* table, const char* name, std::optional<T>& target, T value) {
  if (target) return *target;
  target = value;
  if (table != nullptr)
    if (Option* option = table->find(name)) option->origin = Origin::planner;
  return value;
}

// Whether the model, its tokenizer or a dimension was given explicitly and does not come from the resumed
// run.
bool is_model_explicit(OptionTable* table) {
  if (table == nullptr) return false;
  ModelOptions model;
  OptionTable names;
  declare(names, model);
  std::vector<std::string> option_names = names.names();
  option_names.push_back("tokenizer");
  return std::any_of(option_names.begin(), option_names.end(), [&](const std::string& name) {
    const Option* option = table->find(name);
    return option != nullptr && option->origin > Origin::run;
  });
}

ModelSpec resolve_model(TrainOptions& options, const Tokenizer& tokenizer, bool is_tokenized_data) {
  ModelOptions model = options.model;
  model.model = model_path_of(model.model);
  if (is_demo(options)) {
    model.model = kDemoModel;
    const auto fill = [](auto& target, const auto& value) {
      if (!target) target = value;
    };
    fill(model.overrides.layers, kDemoShape.layers), fill(model.overrides.hidden, kDemoShape.hidden);
    fill(model.overrides.heads, kDemoShape.heads),
        fill(model.overrides.max_positions, kDemoShape.max_positions);
  }
  // A preset uses the vocabulary size of the tokenizer, unless the data is already tokenized and no tokenizer
  // was given.
  const bool is_preset = find_preset(model.model).has_value();
  if (is_preset && !model.overrides.vocab && !(is_tokenized_data && options.tokenizer.empty()))
    model.overrides.vocab = tokenizer.vocab_size();
  ModelSpec spec = resolve(model);
  if (spec.is_mixture())
    throw UserError("{} is a mixture of experts, which can be planned and simulated but not trained yet",
                    spec.name);
  if (is_demo(options))
    spec.name = "demo", spec.embedding_dropout = spec.hidden_dropout = spec.attention_dropout = 0;
  return spec;
}

// config.json does not contain everything. A model family may lack a field for a kind of dropout, and the
// model name is the name of the checkpoint folder.
ModelSpec saved_model(const Path& checkpoint) {
  ModelSpec spec = open_model(checkpoint.string());
  if (std::error_code error; std::filesystem::exists(checkpoint / "plan.json", error))
    spec.name = read_plan(checkpoint / "plan.json").model;
  return spec;
}

struct Data {
  std::vector<BlendPart> parts;
  std::optional<StreamRange> validation;
  std::string name;
};

Data open_all(const TrainOptions& options, const Tokenizer& tokenizer, std::int64_t length,
              EventSink& events) {
  Data data;
  const auto add = [&](std::shared_ptr<const TokenSet> tokens, double weight) {
    Split split = split_for_validation(tokens, options.validation);
    const bool is_long_enough = split.validation.end - split.validation.begin > length &&
                                split.training.end - split.training.begin > length;
    if (!is_long_enough) split = split_for_validation(tokens, 0);
    if (is_long_enough && !data.validation) data.validation = split.validation;
    data.parts.push_back({std::move(split.training), weight});
  };
  if (options.data.empty()) {
    add(demo_text(tokenizer), 1);
    data.name = "C++ headers of this machine";
    return data;
  }
  for (const auto& [weight, name] : parse_blend(options.data))
    add(open_data(name, tokenizer, events), weight);
  data.name = join(options.data, " ");
  return data;
}

std::optional<MaskingOptions> masking(const ModelSpec& model, const Tokenizer& tokenizer) {
  if (model.is_causal) return std::nullopt;
  const std::optional<TokenId> mask = tokenizer.mask_token();
  if (!mask)
    throw UserError(
        "{} is trained with masked language modeling, but its tokenizer has no mask token; specify a "
        "tokenizer that has one with --tokenizer FILE",
        model.name);
  MaskingOptions result{.mask_token = *mask, .vocab_size = model.vocab, .special_tokens = {}};
  for (TokenId id = 0; id < std::min<std::int64_t>(tokenizer.vocab_size(), model.vocab); ++id)
    if (tokenizer.is_special(id)) result.special_tokens.push_back(id);
  return result;
}

// The published fit for the best learning rate as a function of the number of parameters (Kaplan et al. 2020,
// appendix D.6).
double default_learning_rate(const ModelSpec& model) {
  const double layer = static_cast<double>(num_parameters(model) - model.vocab * model.hidden);
  return std::clamp(0.003239 - 0.0001395 * std::log(std::max(1.0, layer)), 5e-5, 3e-3);
}

// A resumed run keeps all of its settings, including those that the user did not specify.
bool is_recompute_explicit(const TrainOptions& options, OptionTable* table) {
  const Option* recompute = table == nullptr ? nullptr : table->find("recompute");
  const bool is_usual = options.recompute == TrainOptions{}.recompute;
  if (recompute == nullptr || recompute->origin == Origin::run) return !is_usual;
  return recompute->origin != Origin::built_in;
}

// Reads the plan from --plan.
ChosenPlan read_given_plan(TrainOptions& options, const ModelSpec& model, OptionTable* table) {
  Plan plan = read_plan(options.plan);
  validate(plan, model, options.plan.string());
  if ((options.batch && plan.batch != *options.batch) ||
      (options.sequence_length && plan.sequence_length != *options.sequence_length))
    throw UserError(
        "{}: the plan has batch size {} and sequence length {}, but --batch and --seq request {} and {}",
        options.plan.string(), plan.batch, plan.sequence_length, options.batch.value_or(plan.batch),
        options.sequence_length.value_or(plan.sequence_length));
  choose(table, "devices", options.devices, std::int64_t{num_devices(plan)});
  return {std::move(plan), ""};
}

// Returns a plan for the batch size and the sequence length of the request, which was built from `options`.
ChosenPlan resolve_plan(TrainOptions& options, const PlannerRequest& request, OptionTable* table) {
  const ModelSpec& model = request.model;
  const std::int64_t length = request.sequence_length, batch = request.batch;
  if (!model.is_custom()) {
    if (!options.devices)
      if (std::optional<ChosenPlan> chosen = value_or_throw(choose_plan_for_all(request))) {
        choose(table, "devices", options.devices, std::int64_t{num_devices(chosen->plan)});
        return *std::move(chosen);
      }
    choose(table, "devices", options.devices, std::int64_t{1});
    if (*options.devices > 1 || has_layout(options.layout)) return value_or_throw(choose_plan(request));
  }
  const std::int64_t devices = choose(table, "devices", options.devices, std::int64_t{1});
  // Each micro-batch has just enough tokens for efficient GEMMs, because activations occupy memory and cache.
  const std::int64_t tokens = request.device.is_gpu ? 32768 : 2048;
  const std::int64_t default_microbatch =
      std::clamp<std::int64_t>(tokens / length, 1, std::max<std::int64_t>(1, batch / devices));
  const std::int64_t microbatch = request.microbatch
                                      ? *request.microbatch
                                      : choose(table, "microbatch", options.microbatch, default_microbatch);
  if (microbatch > batch) throw UsageError("--microbatch {} exceeds --batch {}", microbatch, batch);
  const int pp = options.layout.pp ? options.layout.pp->min : 1;
  UniformPlan shape{.pp = pp,
                    .dp = static_cast<int>(devices) / pp,
                    .microbatch = static_cast<int>(microbatch),
                    .batch = batch,
                    .sequence_length = length};
  shape.precision = request.precision;
  if (options.layout.zero) shape.strategy.zero = options.layout.zero->min;
  if (!options.layout.schedule.empty())
    shape.schedule = parse_schedule(options.layout.schedule, "--schedule");
  shape.strategy.recompute = parse_recompute(options.recompute, "--recompute");
  if (shape.strategy.recompute == RecomputeMode::full && !model.is_custom()) {
    const std::int64_t best = best_recompute_group_size(uniform_plan(model, shape), model);
    const std::int64_t layers = choose(table, "recompute-layers", options.recompute_layers, best);
    shape.strategy.recompute_layers = static_cast<int>(std::clamp<std::int64_t>(layers, 0, model.layers));
  } else if (options.recompute_layers.value_or(1) != 1) {
    throw UsageError("--recompute-layers {} requires --recompute full", *options.recompute_layers);
  }
  Plan plan = uniform_plan(model, shape);
  validate(plan, model, "--batch, --seq and --model");
  return {std::move(plan), ""};
}

bool has_ramp(const TrainOptions& options) {
  return !options.batch_ramp.empty() || !options.sequence_ramp.empty();
}

// Returns the plan for the phase in which the run starts. settings/phases.h creates the plans for later
// phases. A plan that the user specifies is used for any phase.
ChosenPlan resolve_first_phase(TrainOptions& options, TrainSettings& settings, const DeviceFacts& device,
                               OptionTable* table, const TrainingState& state) {
  std::optional<Plan> given_plan;
  if (!options.plan.empty()) given_plan = read_plan(options.plan);
  const std::int64_t batch = choose(table, "batch", options.batch, given_plan ? given_plan->batch : 0);
  const std::int64_t length =
      choose(table, "seq", options.sequence_length, given_plan ? given_plan->sequence_length : 0);
  settings.phases = phases_of(options.batch_ramp, batch, options.sequence_ramp, length);
  const std::vector<Phase> phases = with_decided_starts(settings.phases, state.phase_begins);
  const Phase& phase = phase_at(phases, state.step);
  settings.first_phase = static_cast<std::size_t>(&phase - phases.data());
  if (given_plan) {
    Plan plan = with_batch(*std::move(given_plan), phase.batch, phase.sequence_length);
    validate(plan, settings.model, fmt::format("{} for batch {}", options.plan.string(), phase.batch));
    choose(table, "devices", options.devices, std::int64_t{num_devices(plan)});
    return {std::move(plan), ""};
  }
  return resolve_plan(options, planner_request(options, settings.model, device).for_phase(phase), table);
}

ChosenPlan resolve_only_phase(TrainOptions& options, const ModelSpec& model, const DeviceFacts& device,
                              OptionTable* table) {
  if (!options.plan.empty()) return read_given_plan(options, model, table);
  return resolve_plan(options, planner_request(options, model, device), table);
}

// The noise scale is computed from the global gradient norm, which does not exist with asynchronous updates.
void refuse_noise(const TrainOptions& options, const Plan& plan) {
  if (is_noise_ramp(options.batch_ramp) && is_asynchronous(plan.schedule))
    throw UserError(
        "--batch-ramp {}: schedule {} cannot measure the gradient noise scale, because it updates stages at "
        "different times; specify a number of steps instead",
        options.batch_ramp, text(plan.schedule));
}

Path default_run_folder(const ModelSpec& model) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  std::string name = Path(model.name).filename().string();
  if (name.empty()) name = "model";
  const std::string stem =
      fmt::format("runs/{}-{:04}{:02}{:02}-{:02}{:02}{:02}", name, parts.tm_year + 1900, parts.tm_mon + 1,
                  parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
  std::error_code error;
  Path path = stem;
  for (int i = 2; std::filesystem::exists(path, error); ++i) path = fmt::format("{}-{}", stem, i);
  return path;
}

LearningRate resolve_learning_rate(TrainOptions& options, double default_rate, std::int64_t steps,
                                   OptionTable* table) {
  const double rate = choose(table, "lr", options.learning_rate, default_rate);
  const std::int64_t warmup =
      choose(table, "warmup", options.warmup, std::min<std::int64_t>(2000, steps / 10));
  return {options.shape, rate, rate * options.min_learning_rate_fraction, warmup, steps};
}

// With asynchronous schedules, there is no global gradient norm for clipping.
void disable_clipping(TrainOptions& options, const Plan& plan, OptionTable* table, EventSink& events) {
  if (!is_asynchronous(plan.schedule) || options.clip == 0) return;
  Option* const option = table == nullptr ? nullptr : table->find("clip");
  if (option != nullptr && (option->origin == Origin::file || option->origin == Origin::flag))
    throw UserError(
        "--clip {}: schedule {} cannot clip gradients, because it updates stages at different times; use "
        "--clip 0",
        options.clip, text(plan.schedule));
  options.clip = 0;
  if (option != nullptr) option->origin = Origin::planner;
  events.report(Warning{fmt::format("schedule {}: gradients are not clipped", text(plan.schedule))});
}

// Torch modules can be replicated and assigned to stages, and their state can be sharded, but a single module
// cannot be split.
void refuse_layout_of_modules(TrainOptions& options) {
  const Constraints& c = options.layout;
  const auto is_more = [](const std::optional<Range>& range) { return range && range->min > 1; };
  if (is_more(c.tp) || is_more(c.cp) || is_more(c.ep) || is_more(c.chunks))
    throw UserError(
        "tp, cp, ep and chunks are not supported for models that consist of torch modules; use only pp, dp "
        "and zero");
  const int pp = c.pp ? c.pp->min : 1;
  if (!options.devices && (c.dp || c.pp)) options.devices = pp * (c.dp ? c.dp->min : 1);
  const auto devices = static_cast<int>(options.devices.value_or(1));
  if (devices % pp != 0 || (c.dp && !c.dp->contains(devices / pp)))
    throw UserError("pp {} x dp {} does not equal the number of devices, {}", pp, c.dp ? c.dp->min : 1,
                    devices);
}

}  // namespace

Precision resolve_precision(TrainOptions& options, const DeviceFacts& device, OptionTable* table) {
  if (options.precision.empty()) {
    options.precision = device.is_gpu ? "bf16" : "fp32";
    if (table != nullptr) table->find("precision")->origin = Origin::planner;
  }
  return parse_precision(options.precision, "--precision");
}

TrainSettings resolve_custom(TrainOptions& options, ModelSpec model, std::int64_t num_samples) {
  check_option_ranges(options);
  if (!options.model.model.empty() || !options.data.empty() || !options.tokenizer.empty() ||
      options.dropout || options.sequence_length.value_or(1) != 1 ||
      options.export_format != ExportFormat::none)
    throw UserError(
        "{}: model, data, tokenizer, dropout, sequence length and export cannot be set for a model that "
        "consists of torch modules",
        model.name);
  if (num_samples < 1)
    throw UserError("{}: expected at least 1 sample of data, got {}", model.name, num_samples);
  TrainSettings settings;
  settings.model = std::move(model);
  options.sequence_length = 1;
  if (options.plan.empty()) {
    choose(nullptr, "batch", options.batch, std::int64_t{32});
    const std::int64_t share = std::max<std::int64_t>(1, *options.batch / options.devices.value_or(1));
    choose(nullptr, "microbatch", options.microbatch, std::min<std::int64_t>(32, share));
  }
  refuse_layout_of_modules(options);
  if (has_ramp(options))
    throw UserError("--batch-ramp and --seq-ramp are not supported for models that consist of torch modules");
  settings.plan = resolve_only_phase(options, settings.model, {}, nullptr).plan;
  settings.phases = {{0, settings.plan.batch, settings.plan.sequence_length}};
  settings.steps = choose(nullptr, "steps", options.steps, std::int64_t{1000});
  settings.learning_rate = resolve_learning_rate(options, 1e-3, settings.steps, nullptr);
  settings.run = options.run.empty() ? default_run_folder(settings.model) : options.run;
  return settings;
}

TrainSettings resolve(TrainOptions& options, const DeviceFacts& device, OptionTable* table, EventSink& events,
                      const std::optional<Path>& checkpoint, const TrainingState& state) {
  check_option_ranges(options);
  if (!options.notice.empty()) (void)PreemptionNotice::parse(options.notice);
  TrainSettings settings;
  const bool is_model_saved = checkpoint && !is_model_explicit(table);
  const std::string model_path = is_model_saved ? checkpoint->string() : model_path_of(options.model.model);
  settings.tokenizer_name =
      is_model_saved || options.tokenizer.empty() ? default_tokenizer(model_path) : options.tokenizer;
  settings.tokenizer = open_tokenizer(settings.tokenizer_name);
  const bool is_tokenized_data = !options.data.empty() && is_tokenized(options.data.back());
  settings.model = is_model_saved ? saved_model(model_path)
                                  : resolve_model(options, *settings.tokenizer, is_tokenized_data);
  if (options.dropout)
    settings.model.embedding_dropout = settings.model.hidden_dropout = settings.model.attention_dropout =
        *options.dropout;
  if (checkpoint) ensure_same_model(Checkpoint::open(*checkpoint), settings.model);
  const bool is_guessed_tokenizer =
      is_tokenized_data && options.tokenizer.empty() && settings.tokenizer_name == "bytes";
  if (is_guessed_tokenizer && settings.model.vocab != settings.tokenizer->vocab_size())
    settings.tokenizer_name.clear();
  if (!options.from_scratch && !is_demo(options) && !checkpoint)
    settings.weights = open_weights(options.model.model, settings.model, events);
  if (is_model_saved || settings.weights != nullptr) settings.origin = model_path;
  resolve_precision(options, device, table);
  const std::int64_t max_length =
      settings.model.positions == PositionKind::learned ? settings.model.max_positions : 1 << 20;
  if (options.plan.empty()) {
    choose(table, "seq", options.sequence_length,
           is_demo(options) ? kDemoSequence : std::min<std::int64_t>(max_length, 1024));
    choose(table, "batch", options.batch, is_demo(options) ? kDemoBatch : std::int64_t{8});
  }
  const bool has_default_devices = !options.devices && options.plan.empty();
  options.is_recompute_explicit = is_recompute_explicit(options, table);
  ChosenPlan chosen = has_ramp(options) ? resolve_first_phase(options, settings, device, table, state)
                                        : resolve_only_phase(options, settings.model, device, table);
  settings.plan = std::move(chosen.plan), settings.plan_note = std::move(chosen.note);
  if (settings.phases.empty()) settings.phases = {{0, settings.plan.batch, settings.plan.sequence_length}};
  const std::int64_t longest_phase = settings.phases.back().sequence_length;
  settings.is_device_count_automatic = has_default_devices;
  refuse_noise(options, settings.plan);
  disable_clipping(options, settings.plan, table, events);
  if (has_default_devices && *options.devices < device.count && settings.phases.size() == 1)
    settings.devices_note = fmt::format(
        "using {} of {} devices, because no plan can distribute {} with batch size {} over more devices",
        *options.devices, device.count, settings.model.name, settings.plan.batch);
  settings.steps = choose(table, "steps", options.steps, is_demo(options) ? kDemoSteps : std::int64_t{1000});
  Data data = open_all(options, *settings.tokenizer, longest_phase, events);
  settings.validation = data.validation, settings.data_name = data.name;
  SampleOptions samples = options.samples;
  samples.sequence_length = longest_phase, samples.seed = options.seed;
  settings.samples = std::make_unique<Samples>(std::move(data.parts), samples, settings.model.vocab,
                                               masking(settings.model, *settings.tokenizer));
  // Fine-tuning uses a smaller rate, because it should change pretrained weights only slightly.
  const double share = settings.weights != nullptr ? 0.1 : 1;
  const double default_rate = is_demo(options) ? kDemoRate : share * default_learning_rate(settings.model);
  settings.learning_rate = resolve_learning_rate(options, default_rate, settings.steps, table);
  settings.run = options.run.empty() ? default_run_folder(settings.model) : options.run;
  return settings;
}

}  // namespace optimus
