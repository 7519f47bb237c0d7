// See train.h.
#include "run/train.h"

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/hf_folder.h"
#include "cluster/open.h"
#include "cluster/standard.h"
#include "data/text_stream.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "run/convert.h"
#include "run/evaluate.h"
#include "run/expected.h"
#include "run/memory.h"
#include "run/memory_level.h"
#include "run/profile.h"
#include "run/resume.h"
#include "run/saver.h"
#include "run/settings.h"
#include "run/survivor.h"
#include "run/train_rank.h"
#include "run/train_threads.h"
#include "run/train_workers.h"
#include "run/training.h"
#include "run/weights.h"

namespace optimus {
namespace {

// Mean validation loss over the first windows of the held-out part: at most a few batches.
std::optional<double> validation_loss(Engine& engine, const TrainSettings& settings, int rank) {
  constexpr std::int64_t kMostBatches = 4;
  if (!settings.validation || !settings.model.is_causal) return std::nullopt;
  NullSink quiet;
  const LossSum total = sum_losses(engine, settings.plan, settings.model, *settings.validation,
                                   kMostBatches * settings.plan.batch, quiet, rank);
  return total.count > 0 ? std::optional(total.mean()) : std::nullopt;
}

std::string sample_text(const TrainSettings& settings, const TrainOptions& options, Parameters& parameters,
                        at::Device device) {
  std::int64_t count = options.sample_tokens;
  if (settings.model.positions == PositionKind::learned)
    count = std::min(count, settings.model.max_positions - 1);
  if (count <= 0 || !settings.model.is_causal) return "";
  std::vector<std::int64_t> prompt = {settings.tokenizer->end_of_document().value_or(0)};
  if (prompt[0] >= settings.model.vocab) prompt[0] = 0;
  const auto ids = generate(settings.model, settings.plan.precision, parameters, device, prompt,
                            {.num_tokens = count, .temperature = 0.8, .seed = options.seed});
  return printable(settings.tokenizer->decode(std::vector<TokenId>(ids.begin(), ids.end()), true));
}

void say_what_runs(const TrainSettings& settings, at::Device device, int threads, StatusLine& line) {
  const ModelSpec& model = settings.model;
  line.print(fmt::format("model {}: {} parameters, {} layers, hidden {}, vocabulary {}", model.name,
                         with_commas(num_parameters(model)), model.layers, model.hidden, model.vocab));
  line.print(fmt::format("data {}: {} sequences of {} an epoch", settings.data_name,
                         with_commas(settings.samples->epoch_size()), settings.plan.sequence_length));
  if (settings.weights != nullptr)
    line.print(fmt::format("weights of {}, {}", settings.weights->name(), text(settings.weights->type())));
  say_how_it_runs(settings, device, threads, line);
}

// Where this machine was measured: what a step should take.
void say_what_to_expect(const TrainSettings& settings, at::Device device, EventSink& events,
                        StatusLine& line) {
  const std::optional<DeviceType> type = measured_type(type_name(device), events);
  if (!type) return;
  const std::optional<double> seconds = expected_step_seconds(*type, settings.plan, settings.model);
  if (!seconds) return;
  const double tokens =
      static_cast<double>(settings.plan.batch) * static_cast<double>(settings.plan.sequence_length);
  line.print(fmt::format("expected {} a step, {} tokens/s, by what was measured of this machine",
                         text(Seconds(*seconds)), short_count(tokens / *seconds)));
}

// So that the run can be resumed from another folder. Weights of a blend stay.
void make_absolute(std::vector<std::string>& data) {
  for (std::size_t i = data.size() > 1 ? 1 : 0; i < data.size(); i += 2)
    data[i] = std::filesystem::absolute(data[i]).string();
}

// Workers and this process are to mean the same file, and it is better to know now that there is no place for it.
void place_profile(TrainOptions& options) {
  if (options.profile.empty()) return;
  options.profile = std::filesystem::absolute(options.profile);
  std::error_code error;
  if (!std::filesystem::is_directory(options.profile.parent_path(), error))
    throw UserError("--profile {}: the folder {} is not there", options.profile.string(),
                    options.profile.parent_path().string());
}

void refuse_finished(const TrainSettings& settings, const TrainingState& state) {
  if (state.step >= settings.steps)
    throw UserError("{} has done its {} steps; say --steps with a larger number to go on",
                    settings.run.string(), state.step);
}

// Samples are counted, and those of another length hold other tokens.
void warn_of_other_length(const ResumedRun& resumed, const TrainSettings& settings, EventSink& events) {
  if (!resumed.checkpoint) return;
  const std::int64_t before = read_plan(*resumed.checkpoint / "plan.json").sequence_length;
  if (before != settings.plan.sequence_length)
    events.report(
        Warning{fmt::format("sequences of {} where the run had {}: it goes on with sample {} of the new "
                            "length, so some text comes "
                            "twice or not at all",
                            settings.plan.sequence_length, before, resumed.state.num_samples)});
}

HfDescription description_of(const TrainSettings& settings, ElementType type) {
  return {settings.model, type, settings.tokenizer_name, settings.origin};
}

// RUN/export. The tokenizer and token ids are those of the folder that training began with, where it did.
void export_model(const TrainSettings& settings, const Parameters& parameters, FileSystem& files,
                  EventSink& events, StatusLine& line) {
  const ParameterWeights weights(parameters, settings.plan.precision);
  const Path folder = settings.run / "export";
  write_model_folder(files, folder, description_of(settings, weights.type()), weights,
                     ConvertOptions{}.largest_shard, events);
  line.print(fmt::format("exported to {}", folder.string()));
}

// For what one device does with the weights of many.
Plan one_device_plan(const TrainSettings& settings) {
  return uniform_plan(
      settings.model,
      {.batch = 1, .sequence_length = settings.plan.sequence_length, .precision = settings.plan.precision});
}

// The export that was asked for, and a sample of text.
void show_what_was_learned(const TrainSettings& settings, const TrainOptions& options, Parameters& parameters,
                           const RankPart& part, TrainResult& result) {
  RealFileSystem files;
  if (options.export_format == ExportFormat::hf)
    export_model(settings, parameters, files, part.events, part.line);
  result.sample = sample_text(settings, options, parameters, part.device);
}

// All GPUs, unless one was named; else a worker for each core, or for as many cores as it was given threads.
int num_usual_devices(at::Device device, const TrainOptions& options) {
  if (device.is_cuda()) return options.device.find(':') == std::string::npos ? num_cuda_devices() : 1;
  return std::max(1, num_cores() / static_cast<int>(std::max<std::int64_t>(1, options.threads)));
}

DeviceFacts facts_of(at::Device device) {
  DeviceFacts facts{.is_gpu = device.is_cuda()};
  if (const std::optional<DeviceType> type = find_type_in(device_name(device))) facts.type = type->name;
  facts.memory = free_memory(device);
  return facts;
}

}  // namespace

// What a checkpoint needs beside tensors to be opened alone: its model and tokenizer as a Hugging Face folder has them, and how
// it ran.
std::vector<SmallFile> small_files(const TrainSettings& settings) {
  std::vector<SmallFile> files = hf_description(description_of(settings, ElementType::f32));
  for (const char* name : {"settings.toml", "plan.json"})
    files.push_back({name, value_or_throw(read_file(settings.run / name, Bytes(1 << 26)))});
  return files;
}

namespace {

void begin_memory_level(const TrainSettings& settings, const TrainOptions& options, FileSystem& files,
                        StatusLine& line) {
  const std::int64_t width = settings.plan.precision == Precision::fp64 ? 8 : 4;
  const Bytes state(std::ssize(kStateFields) * width * num_parameters(settings.model));
  const Path folder = make_memory_level(files, settings.run, options.memory_folder, {state});
  line.print(fmt::format("memory {}: the state of every {} steps, {} and as much again while it is written",
                         folder.string(), options.memory_every, text(state)));
}

}  // namespace

PreparedRun prepare_run(TrainOptions& options, OptionTable* table, FileSystem& files, EventSink& events,
                        bool has_workers) {
  PreparedRun run;
  if (!options.resume.empty()) run.resumed = resume(options, *table, files, events);
  const at::Device device = choose_device(options.device);
  DeviceFacts facts = facts_of(device);
  if (has_workers) facts.count = num_usual_devices(device, options);
  run.settings = resolve(options, facts, table, events, run.resumed.checkpoint);
  ensure_engine_supports(run.settings.plan, run.settings.model);
  if (run.resumed.checkpoint)
    ensure_same_model(Checkpoint::open(*run.resumed.checkpoint), run.settings.model);
  refuse_finished(run.settings, run.resumed.state);
  warn_of_other_length(run.resumed, run.settings, events);
  refuse_too_large(run.settings.plan, run.settings.model, device);
  make_absolute(options.data);
  place_profile(options);
  if (!run.resumed.lock.is_held()) run.resumed.lock = FolderLock::take(run.settings.run);
  return run;
}

namespace {

// With what the others still have (salvage.h).
void keep_what_is_left(const TrainSettings& settings, const RankPart& part, Training& training, Saver& saver,
                       const std::exception& why) {
  const auto* const lost = dynamic_cast<const PeersLost*>(&why);
  const Layout layout = layout_of(settings.plan, settings.model, StateKind::optimizer);
  const std::unique_ptr<Board> board = part.open_board();
  if (board == nullptr) return;
  survive({part.comm.rank(), layout, training, saver}, *board,
          lost != nullptr ? lost->failure.missing : std::vector<int>(), part.let_go);
}

}  // namespace

TrainResult train_rank(const PreparedRun& run, const TrainOptions& options, const RankPart& part) {
  const TrainSettings& settings = run.settings;
  const TrainingState& state = run.resumed.state;
  const at::Device device = part.device;
  const bool keeps_records = part.comm.rank() == 0;
  RealFileSystem files;
  Parameters parameters(settings.plan, settings.model, part.comm.rank(), device);
  if (run.resumed.checkpoint)
    restore(Checkpoint::open(*run.resumed.checkpoint), settings.model, Restored::everything, parameters);
  else if (settings.weights != nullptr)
    load_weights(*settings.weights, parameters, part.events);
  else
    parameters.initialize(options.seed);
  const bool is_alone = num_devices(settings.plan) == 1;
  EngineOptions engine_options{.device = device, .seed = options.seed};
  engine_options.product_record = measured_cluster_path().parent_path() / "products.json";
  engine_options.rank = part.comm.rank(), engine_options.patience = options.patience;
  if (!is_alone) engine_options.comm = &part.comm;
  Engine engine(settings.plan, settings.model, parameters, engine_options);
  if (!is_alone)
    done_or_throw(part.comm.connect(0, engine.groups(), Deadline::after(options.patience, "connecting")));
  say_what_runs(settings, device, part.threads, part.line);
  say_what_to_expect(settings, device, part.events, part.line);
  const Course course{
      [&](std::int64_t step, std::int64_t first) {
        return read_batch(*settings.samples, settings.plan, step, first, part.comm.rank());
      },
      [&](Engine& trained) { return validation_loss(trained, settings, part.comm.rank()); },
      part.step_ended,
  };
  const Agreement ranks(is_alone ? nullptr : &part.comm, world_of(settings.plan, part.comm.size()),
                        options.patience);
  std::optional<RunFolder> records;
  if (keeps_records) records = open_records(settings.run, files, state.step);
  Saver saver({files, settings.run, {options.keep_last, options.keep_every}, small_files(settings)},
              settings.plan, settings.model, parameters, ranks);
  std::optional<Profiler> profiler;
  if (!options.profile.empty())
    profiler.emplace(ProfileOptions{options.profile, settings.run, state.step, settings.steps}, settings.plan,
                     settings.model, engine, parameters, ranks, part.events, part.line);
  std::optional<Saver> memory;
  if (const std::optional<Path> level = find_memory_level(settings.run); options.memory_every > 0 && level)
    memory.emplace(Saver::Target{files, *level, {.keep_last = 1}, small_files(settings)}, settings.plan,
                   settings.model, parameters, ranks);
  if (const auto hosts = find_host_memory(settings.run); options.memory_every > 0 && hosts)
    memory.emplace(Saver::Target{files, settings.run, {}, small_files(settings), hosts}, settings.plan,
                   settings.model, parameters, ranks);
  Training training(options, settings, course, engine, parameters, state, part.events, part.line);
  TrainResult result;
  try {
    result = training.run(records ? &*records : nullptr, saver, profiler ? &*profiler : nullptr,
                          memory ? &*memory : nullptr);
  } catch (const std::exception& error) {  // not Interrupted: that has saved
    if (memory) memory->end_writing();
    if (part.open_board) keep_what_is_left(settings, part, training, saver, error);
    throw;
  }
  if (!keeps_records) return result;
  if (is_alone) {
    show_what_was_learned(settings, options, parameters, part, result);
    return result;
  }
  // Each rank has a part; the checkpoint has all.
  const Plan whole = one_device_plan(settings);
  Parameters all(whole, settings.model, 0, device, Keeping::weights);
  restore(Checkpoint::open(result.checkpoint), settings.model, Restored::weights, all);
  show_what_was_learned(settings, options, all, part, result);
  return result;
}

TrainResult train(TrainOptions& options, OptionTable* table, EventSink& events, StatusLine& line,
                  const WorkerCommand* workers) {
  RealFileSystem files;
  const PreparedRun run = prepare_run(options, table, files, events, workers != nullptr);
  const int size = std::max(static_cast<int>(*options.devices), num_devices(run.settings.plan));
  begin_run_folder(run.settings, options, table, files);
  if (!run.settings.devices_note.empty()) line.print(run.settings.devices_note);
  if (!run.settings.plan_note.empty()) line.print(run.settings.plan_note);
  if (options.memory_every > 0) begin_memory_level(run.settings, options, files, line);
  const auto work = [&] {
    if (size > 1 && workers != nullptr) return train_with_workers(run, options, *table, size, *workers);
    return train_with_threads(run.settings.run, options, num_devices(run.settings.plan), events, line,
                              [&](const RankPart& part) { return train_rank(run, options, part); });
  };
  // Once it has a checkpoint of its last step in files.
  const auto end_memory_level = [&] {
    if (const Outcome<void> done = remove_memory_level(files, run.settings.run); !done)
      line.print("warning: " + done.error().why);
  };
  try {
    TrainResult result = work();
    end_memory_level();
    return result;
  } catch (const Interrupted&) {
    end_memory_level();
    throw;
  }
}

TrainResult train(const std::string& model, const std::string& data, TrainOptions options) {
  options.model.model = model;
  options.data = {data};
  OptionTable table;
  declare(table, options);
  mark_given(table);
  NullSink events;
  StatusLine line(stderr);
  return train(options, &table, events, line);
}

}  // namespace optimus
