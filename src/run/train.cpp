// Implements train.h. Prepares a run and starts its ranks.
#include "run/train.h"

#include "adapt/condition_timeline.h"
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/convert.h"
#include "checkpoint/hf_folder.h"
#include "cluster/open.h"
#include "cluster/standard.h"
#include "data/text_stream.h"
#include "elastic/membership_coordinator.h"
#include "elastic/memory_level.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "inference/evaluate.h"
#include "inference/weights.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "policy/decide.h"
#include "policy/learned_policy.h"
#include "reshard/switch_script.h"
#include "run/profile.h"
#include "run/saver.h"
#include "run/survivor.h"
#include "run/train_rank.h"
#include "run/train_threads.h"
#include "run/train_workers.h"
#include "run/training.h"
#include "rundir/plan_files.h"
#include "settings/choose_plan.h"
#include "settings/expected.h"
#include "settings/phases.h"
#include "settings/resume.h"
#include "settings/settings.h"
#include "switching/memory.h"
#include "switching/plan_switch_controller.h"

namespace optimus {
namespace {

// Makes data paths absolute, so that the run can be resumed from another working directory. The weights in a
// blend ("weight name weight name …") are not changed.
void make_absolute(std::vector<std::string>& data) {
  for (std::size_t i = data.size() > 1 ? 1 : 0; i < data.size(); i += 2)
    data[i] = std::filesystem::absolute(data[i]).string();
}

// Makes the path absolute, so that workers write to the same file as this process would. Fails early if the
// file's folder does not exist.
void make_profile_path_absolute(TrainOptions& options) {
  if (options.profile.empty()) return;
  options.profile = std::filesystem::absolute(options.profile);
  std::error_code error;
  if (!std::filesystem::is_directory(options.profile.parent_path(), error))
    throw UserError("--profile {}: folder {} does not exist", options.profile.string(),
                    options.profile.parent_path().string());
}

void refuse_finished(const TrainSettings& settings, const TrainingState& state) {
  if (state.step >= settings.steps)
    throw UserError("{} has completed its {} steps; to continue, pass a larger --steps",
                    settings.run.string(), state.step);
}

// Warns if the sequence length has changed, because the position in the data is a number of samples, and
// samples of a different length contain different tokens.
void warn_of_other_length(const ResumedRun& resumed, const TrainSettings& settings, EventSink& events) {
  if (!resumed.checkpoint) return;
  const std::int64_t previous_length = read_plan(*resumed.checkpoint / "plan.json").sequence_length;
  if (previous_length != settings.plan.sequence_length)
    events.report(Warning{fmt::format(
        "sequence length {} differs from the previous {}; training resumes at sample {} of the new "
        "length, so some text is repeated or skipped",
        settings.plan.sequence_length, previous_length, resumed.state.num_samples)});
}

// Returns the number of all GPUs, or 1 if the options name one GPU. On CPUs, returns one worker per core, or
// one per --threads cores.
int default_device_count(at::Device device, const TrainOptions& options) {
  if (device.is_cuda()) return options.device.find(':') == std::string::npos ? num_cuda_devices() : 1;
  return std::max(1, num_cores() / static_cast<int>(std::max<std::int64_t>(1, options.threads)));
}

}  // namespace

DeviceFacts facts_of(at::Device device) {
  DeviceFacts facts{.is_gpu = device.is_cuda()};
  if (const std::optional<DeviceType> type = find_type_by_vendor_name(device_name(device)))
    facts.type = type->name;
  facts.memory = free_memory(device);
  return facts;
}

DeviceFacts all_device_facts(at::Device device, const TrainOptions& options) {
  DeviceFacts facts = facts_of(device);
  facts.count = default_device_count(device, options);
  return facts;
}

DeviceFacts named_device_facts(const TrainOptions& options) {
  return all_device_facts(choose_device(options.device), options);
}

HfDescription description_of(const TrainSettings& settings, ElementType type) {
  return {settings.model, type, settings.tokenizer_name, settings.origin};
}

// Returns the files that make a checkpoint self-contained, in addition to the tensors: the model and
// tokenizer in Hugging Face format, and the run's settings and plan.
std::vector<SmallFile> small_files(const TrainSettings& settings) {
  std::vector<SmallFile> files = hf_description(description_of(settings, ElementType::f32));
  const char* const name = "settings.toml";
  files.push_back({name, value_or_throw(read_file(settings.run / name, Bytes(1 << 26)))});
  files.push_back({kPlanFile, plan_text(settings.plan)});
  return files;
}

namespace {

void begin_memory_level(const RunSpec& spec, FileSystem& files, StatusLine& line) {
  const TrainSettings& settings = spec.settings;
  const std::int64_t width = settings.plan.precision == Precision::fp64 ? 8 : 4;
  const Bytes state(std::ssize(kStateFields) * width * num_parameters(settings.model));
  const Path folder = make_memory_level(files, settings.run, spec.options.memory_folder, {state});
  line.print(fmt::format(
      "in-memory checkpoints go to {} every {} steps; they take {}, and twice as much during a write",
      folder.string(), spec.options.memory_every, text(state)));
}

}  // namespace

namespace {

void check_policy_options(const TrainOptions& options) {
  const bool is_oracle =
      !options.policy.empty() && parse_policy(options.policy, "--policy").kind == PolicyKind::oracle;
  if (is_oracle && options.conditions.empty())
    throw UserError(
        "--policy oracle needs scripted conditions; pass --conditions FILE or choose another policy");
  if (!is_oracle && !options.conditions.empty())
    throw UserError("--conditions requires --policy oracle; add it or remove --conditions");
  if (is_oracle) (void)read_timeline(options.conditions);
  const bool is_learned =
      !options.policy.empty() && parse_policy(options.policy, "--policy").kind == PolicyKind::learned;
  if (!is_learned && !options.learned.empty())
    throw UserError("--learned requires --policy learned; add it or remove --learned");
  if (!options.learned.empty()) (void)read_learned_policy(options.learned);
}

}  // namespace

RunSpec prepare_run(TrainOptions& options, OptionTable* table, FileSystem& files, EventSink& events,
                    bool has_workers) {
  ResumedRun resumed;
  if (!options.resume.empty()) resumed = resume(options, *table, files, events);
  const at::Device device = choose_device(options.device);
  const DeviceFacts facts = has_workers ? all_device_facts(device, options) : facts_of(device);
  TrainSettings settings = resolve(options, facts, table, events, resumed.checkpoint, resumed.state);
  ensure_engine_supports(settings.plan, settings.model);
  refuse_finished(settings, resumed.state);
  warn_of_other_length(resumed, settings, events);
  check_fits(settings.plan, settings.model, device);
  options.switch_at = with_absolute_paths(options.switch_at);
  check_policy_options(options);
  // Later plans must support current scaling as well.
  if (settings.plan.fp8.scaling == Fp8Scaling::current) options.layout.tp = options.layout.cp = Range{1, 1};
  for (Path* const file : {&options.conditions, &options.learned})
    if (!file->empty()) *file = std::filesystem::absolute(*file);
  settings.phase_plans = plan_phases(options, settings, facts);
  std::vector<ScriptedSwitch> script = script_of(options, settings);
  for (const ScriptedSwitch& scripted : script) ensure_engine_supports(scripted.plan, settings.model);
  make_absolute(options.data);
  make_profile_path_absolute(options);
  if (!resumed.lock.is_held()) resumed.lock = FolderLock::take(settings.run);
  return {options, std::move(settings), std::move(resumed), std::move(script)};
}

int num_ranks(const RunSpec& spec) {
  int count = std::max(static_cast<int>(*spec.options.devices), num_devices(spec.settings.plan));
  for (const ScriptedSwitch& scripted : spec.script) count = std::max(count, num_devices(scripted.plan));
  return count;
}

namespace {

// Returns notes, one line each, if the number of workers may surprise the user.
std::vector<std::string> worker_notes(const RunSpec& spec, bool is_count_requested, int size) {
  std::vector<std::string> notes;
  const int used = num_devices(spec.settings.plan), requested = static_cast<int>(*spec.options.devices);
  const int cores = num_cores();
  if (size > requested && is_count_requested)
    notes.push_back(fmt::format("starting {} workers instead of {}, because a later plan uses {} devices",
                                size, requested, size));
  if (used < size)
    notes.push_back(fmt::format("{} of {} workers are idle, because the plan uses only {} device{}",
                                size - used, size, used, used == 1 ? "" : "s"));
  if (choose_device(spec.options.device).is_cpu() && cores > 0 && used > cores)
    notes.push_back(fmt::format("{} workers share {} cores and slow each other down", used, cores));
  return notes;
}

}  // namespace

TrainResult train(TrainOptions& options, OptionTable* table, EventSink& events, StatusLine& line,
                  const WorkerCommand* workers) {
  RealFileSystem files;
  const bool is_count_requested = options.devices.has_value();
  const RunSpec spec = prepare_run(options, table, files, events, workers != nullptr);
  const int size = num_ranks(spec);
  begin_run_folder(spec, table, files);
  clear_claims(spec.settings.run);
  if (!spec.settings.devices_note.empty()) line.print(spec.settings.devices_note);
  if (!spec.settings.plan_note.empty()) line.print(spec.settings.plan_note);
  for (const std::string& note : worker_notes(spec, is_count_requested, size)) line.print(note);
  if (options.memory_every > 0) begin_memory_level(spec, files, line);
  const auto end_memory_level = [&] {
    if (const Outcome<void> done = remove_memory_level(files, spec.settings.run); !done)
      line.print("warning: " + done.error().why);
  };
  try {
    TrainResult result =
        size > 1 && workers != nullptr
            ? train_with_workers(spec, *table, size, *workers)
            : train_with_threads(spec.settings.run, spec.options, size, events, line,
                                 [&](const RankContext& rank) { return train_rank(spec, rank); });
    end_memory_level();  // no longer needed, because the checkpoint of the last step is on disk
    return result;
  } catch (const Interrupted&) {  // before the first step
    end_memory_level();
    throw;
  }
}

TrainResult train(const std::string& model, const std::string& data, TrainOptions options) {
  options.model.model = model;
  options.data = {data};
  OptionTable table;
  declare(table, options);
  mark_explicit_options(table);
  NullSink events;
  StatusLine line(stderr);
  return train(options, &table, events, line);
}

}  // namespace optimus
