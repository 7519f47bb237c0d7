// See train.h.
#include "run/train.h"

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/hf_folder.h"
#include "cluster/open.h"
#include "cluster/standard.h"
#include "data/text_stream.h"
#include "elastic/plan_switches.h"
#include "elastic/switch_script.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "run/choose_plan.h"
#include "run/convert.h"
#include "run/evaluate.h"
#include "run/expected.h"
#include "run/memory.h"
#include "run/memory_level.h"
#include "run/plan_files.h"
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

constexpr Bytes kMovingRoom{std::int64_t{256} << 20};  // for copies of what moves

// Mean validation loss over the first windows of the held-out part: at most a few batches.
std::optional<double> validation_loss(const PlanPart& part, const TrainSettings& settings, int rank) {
  constexpr std::int64_t kMostBatches = 4;
  if (!settings.validation || !settings.model.is_causal) return std::nullopt;
  NullSink quiet;
  const LossSum total = sum_losses(*part.engine, part.plan, settings.model, *settings.validation,
                                   kMostBatches * part.plan.batch, quiet, rank);
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
  const char* const name = "settings.toml";
  files.push_back({name, value_or_throw(read_file(settings.run / name, Bytes(1 << 26)))});
  files.push_back({kPlanFile, plan_text(settings.plan)});
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
  options.switch_at = with_whole_paths(options.switch_at);
  run.script = read_switch_script(options.switch_at, run.settings.plan, run.settings.model);
  make_absolute(options.data);
  place_profile(options);
  if (!run.resumed.lock.is_held()) run.resumed.lock = FolderLock::take(run.settings.run);
  return run;
}

int num_ranks(const TrainOptions& options, const PreparedRun& run) {
  int count = std::max(static_cast<int>(*options.devices), num_devices(run.settings.plan));
  for (const ScriptedSwitch& scripted : run.script) count = std::max(count, num_devices(scripted.plan));
  return count;
}

namespace {

// Copies in the hosts' memory are agreed on for these.
bool uses_first_ranks(const Plan& plan, int count) {
  for (int rank = 0; rank < count; ++rank)
    if (!has_device(plan, rank)) return false;
  return num_devices(plan) == count;
}

// One rank of a run of text.
class RankRun {
 public:
  RankRun(const PreparedRun& run, const TrainOptions& options, const RankPart& rank)
      : run_(run),
        settings_(run.settings),
        options_(options),
        rank_(rank),
        small_files_(small_files(run.settings)) {}

  TrainResult train();

 private:
  EngineOptions engine_options() const;
  void take_first_part();
  void fill(Parameters& parameters) const;
  PartKeepers keepers(const PlanPart& part);
  Agreement ranks_of(const PlanPart& part) const;
  void check_memory(const PlanSwitch& next) const;
  Plan best_plan() const;  // for all ranks that there are
  // With what the others still have (salvage.h).
  void keep_what_is_left(Training& training, PlanSwitches& switches, const std::exception& why);
  void show_result(TrainResult& result);
  int number() const { return rank_.comm.rank(); }

  const PreparedRun& run_;
  const TrainSettings& settings_;
  const TrainOptions& options_;
  const RankPart& rank_;
  RealFileSystem files_;
  std::vector<SmallFile> small_files_;  // some are in a checkpoint that will be gone
  PlanPart part_;
  bool has_profiled_ = false;
};

EngineOptions RankRun::engine_options() const {
  EngineOptions options{.device = rank_.device, .seed = options_.seed};
  options.product_record = measured_cluster_path().parent_path() / "products.json";
  options.rank = number(), options.patience = options_.patience;
  return options;
}

void RankRun::fill(Parameters& parameters) const {
  if (run_.resumed.checkpoint)
    restore(Checkpoint::open(*run_.resumed.checkpoint), settings_.model, Restored::everything, parameters);
  else if (settings_.weights != nullptr)
    load_weights(*settings_.weights, parameters, rank_.events);
  else
    parameters.initialize(options_.seed);
}

void RankRun::take_first_part() {
  part_.plan = settings_.plan;
  if (!has_device(part_.plan, number())) return;
  part_.parameters = std::make_unique<Parameters>(part_.plan, settings_.model, number(), rank_.device);
  fill(*part_.parameters);
  EngineOptions options = engine_options();
  const bool is_alone = num_devices(part_.plan) == 1;
  if (!is_alone) options.comm = &rank_.comm;
  part_.engine = std::make_unique<Engine>(part_.plan, settings_.model, *part_.parameters, options);
  if (!is_alone)
    done_or_throw(
        rank_.comm.connect(0, part_.engine->groups(), Deadline::after(options_.patience, "connecting")));
}

Agreement RankRun::ranks_of(const PlanPart& part) const {
  return {num_devices(part.plan) == 1 ? nullptr : &rank_.comm, world_of(part.plan, rank_.comm.size()),
          options_.patience};
}

PartKeepers RankRun::keepers(const PlanPart& part) {
  PartKeepers made;
  if (part.is_empty()) return made;
  for (SmallFile& file : small_files_)
    if (file.name == kPlanFile) file.content = plan_text(part.plan);
  const Agreement ranks = ranks_of(part);
  const auto saver = [&](const Path& folder, Retention retention, std::optional<HostMemory> hosts = {}) {
    return std::make_unique<Saver>(Saver::Target{files_, folder, retention, small_files_, std::move(hosts)},
                                   part.plan, settings_.model, *part.parameters, ranks, number());
  };
  made.saver = saver(settings_.run, {options_.keep_last, options_.keep_every});
  if (const std::optional<Path> level = find_memory_level(settings_.run); options_.memory_every > 0 && level)
    made.memory = saver(*level, {.keep_last = 1});
  if (const auto hosts = find_host_memory(settings_.run); options_.memory_every > 0 && hosts)
    if (uses_first_ranks(part.plan, static_cast<int>(hosts->host_of.size())))
      made.memory = saver(settings_.run, {}, hosts);
  // Of the first plan only: its steps are the first of the run.
  if (!options_.profile.empty() && !std::exchange(has_profiled_, true))
    made.profiler = std::make_unique<Profiler>(
        ProfileOptions{options_.profile, settings_.run, run_.resumed.state.step, settings_.steps}, part.plan,
        settings_.model, *part.engine, *part.parameters, ranks, rank_.events, rank_.line);
  return made;
}

// A switch needs no more than either plan does.
void RankRun::check_memory(const PlanSwitch& next) const {
  Bytes held(0), most(0);
  for (const Plan* plan : {&next.change().from, &next.plan()})
    if (has_device(*plan, number()))
      most = std::max(most, predicted_memory(*plan, settings_.model, number(), rank_.device));
  if (has_device(next.change().from, number()))
    held = predicted_memory(next.change().from, settings_.model, number(), rank_.device);
  refuse_too_large(next.plan(), settings_.model, rank_.device, held);
  if (next.most_held() > most + kMovingRoom)
    throw UserError("the switch needs {} here while state moves, the plans {}", text(next.most_held()),
                    text(most));
}

Plan RankRun::best_plan() const {
  TrainOptions options = options_;
  options.devices = rank_.comm.size(), options.batch = settings_.plan.batch;
  options.sequence_length = settings_.plan.sequence_length;
  options.precision = text(settings_.plan.precision);
  return choose_plan(options, settings_.model, facts_of(rank_.device), false).plan;
}

void RankRun::keep_what_is_left(Training& training, PlanSwitches& switches, const std::exception& why) {
  const auto* const lost = dynamic_cast<const PeersLost*>(&why);
  const Layout layout = layout_of(part_.plan, settings_.model, StateKind::optimizer);
  const std::unique_ptr<Board> board = rank_.open_board();
  if (board == nullptr) return;
  survive({number(), layout, training, training.saver()}, *board,
          lost != nullptr ? lost->failure.missing : std::vector<int>(), [&] {
            rank_.agreement.let_go();
            switches.let_go();
          });
}

// Each rank has a part; the checkpoint has all.
void RankRun::show_result(TrainResult& result) {
  if (!part_.is_empty() && num_devices(part_.plan) == 1)
    return show_what_was_learned(settings_, options_, *part_.parameters, rank_, result);
  const Plan whole = one_device_plan(settings_);
  Parameters all(whole, settings_.model, 0, rank_.device, Keeping::weights);
  restore(Checkpoint::open(result.checkpoint), settings_.model, Restored::weights, all);
  show_what_was_learned(settings_, options_, all, rank_, result);
}

TrainResult RankRun::train() {
  const bool keeps_records = number() == 0;
  take_first_part();
  if (!part_.is_empty()) {
    say_what_runs(settings_, rank_.device, rank_.threads, rank_.line);
    say_what_to_expect(settings_, rank_.device, rank_.events, rank_.line);
  }
  const Course course{
      [&](const Plan& plan, std::int64_t step, std::int64_t first) {
        return read_batch(*settings_.samples, plan, step, first, number());
      },
      [&](const PlanPart& part) { return validation_loss(part, settings_, number()); },
      [&](const PlanPart& part) { return keepers(part); },
  };
  std::optional<RunFolder> records;
  if (keeps_records) records = open_records(settings_.run, files_, run_.resumed.state.step);
  ControlFolder requests(settings_.run);
  std::optional<PlanSwitches::Outside> outside;
  if (keeps_records) outside.emplace(PlanSwitches::Outside{requests, [&] { return best_plan(); }});
  PlanSwitches switches({settings_.model, rank_.comm, engine_options(), {.patience = options_.patience}},
                        part_, run_.script, outside, [&](const PlanSwitch& next) { check_memory(next); });
  const Company company{rank_.comm, rank_.agreement, rank_.is_asked, &switches,
                        newest_epoch(settings_.run).value_or(0)};
  Training training(options_, settings_, course, part_, run_.resumed.state, company, rank_.events,
                    rank_.line);
  TrainResult result;
  try {
    result = training.run(records ? &*records : nullptr);
  } catch (const std::exception& error) {  // not Interrupted: that has saved
    training.end_writing();
    if (rank_.open_board) keep_what_is_left(training, switches, error);
    switches.let_go();
    if (keeps_records) requests.close("the run has failed");
    throw;
  }
  if (!keeps_records) return result;
  requests.close("the run has ended");
  show_result(result);
  return result;
}

}  // namespace

TrainResult train_rank(const PreparedRun& run, const TrainOptions& options, const RankPart& part) {
  return RankRun(run, options, part).train();
}

TrainResult train(TrainOptions& options, OptionTable* table, EventSink& events, StatusLine& line,
                  const WorkerCommand* workers) {
  RealFileSystem files;
  const PreparedRun run = prepare_run(options, table, files, events, workers != nullptr);
  const int size = num_ranks(options, run);
  begin_run_folder(run.settings, options, table, files);
  if (!run.settings.devices_note.empty()) line.print(run.settings.devices_note);
  if (!run.settings.plan_note.empty()) line.print(run.settings.plan_note);
  if (options.memory_every > 0) begin_memory_level(run.settings, options, files, line);
  const auto work = [&] {
    if (size > 1 && workers != nullptr) return train_with_workers(run, options, *table, size, *workers);
    return train_with_threads(run.settings.run, options, size, events, line,
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
