// Implements train_modules.h.
#include "run/train_modules.h"

#include "base/error.h"
#include "engine/module_block.h"
#include "reshard/switch_script.h"
#include "run/profile.h"
#include "run/saver.h"
#include "run/train_rank.h"
#include "run/train_threads.h"
#include "run/training.h"
#include "rundir/plan_files.h"
#include "settings/resume.h"
#include "switching/memory.h"
#include "switching/plan_switch_controller.h"

namespace optimus {
namespace {

struct ModuleRun {
  const ModuleData& data;
  const ModuleDescription& description;
  const RunSpec& spec;
};

// Runs one rank, which has its own modules.
class ModuleRankRun {
 public:
  ModuleRankRun(const ModuleModel& model, const ModuleRun& run, const RankContext& rank)
      : model_(model),
        run_(run),
        settings_(run.spec.settings),
        options_(run.spec.options),
        rank_(rank),
        description_(run.description) {
    description_.device = rank.device;
  }

  TrainResult train();

 private:
  EngineOptions engine_options() const;
  void build_first_part();
  PartServices make_services(const PlanPart& part);
  int rank_index() const { return rank_.comm.rank(); }

  const ModuleModel& model_;
  const ModuleRun& run_;
  const TrainSettings& settings_;
  const TrainOptions& options_;
  const RankContext& rank_;
  ModuleDescription description_;
  RealFileSystem files_;
  PlanPart part_;
  bool has_profiled_ = false;
};

EngineOptions ModuleRankRun::engine_options() const {
  EngineOptions options{.device = rank_.device, .seed = options_.seed};
  options.make_custom_block = module_blocks(model_, description_);
  options.rank = rank_index(), options.timeout = options_.timeout;
  return options;
}

void ModuleRankRun::build_first_part() {
  part_.plan = settings_.plan;
  if (!has_device(part_.plan, rank_index())) return;
  part_.parameters = std::make_unique<Parameters>(part_.plan, settings_.model, rank_index(), rank_.device);
  set_values(model_, *part_.parameters);
  if (const std::optional<Path>& checkpoint = run_.spec.resumed.checkpoint)
    restore(Checkpoint::open(*checkpoint), settings_.model, Restored::everything, *part_.parameters);
  EngineOptions options = engine_options();
  const bool is_alone = num_devices(part_.plan) == 1;
  if (!is_alone) options.comm = &rank_.comm;
  part_.engine = std::make_unique<Engine>(part_.plan, settings_.model, *part_.parameters, options);
  if (!is_alone)
    throw_if_failed(
        rank_.comm.connect(0, part_.engine->groups(), Deadline::after(options_.timeout, "connecting")));
}

PartServices ModuleRankRun::make_services(const PlanPart& part) {
  PartServices services;
  if (part.is_empty()) return services;
  services.modules = std::make_unique<ModuleBinding>(model_, description_, *part.parameters);
  const Agreement ranks(num_devices(part.plan) == 1 ? nullptr : &rank_.comm,
                        world_of(part.plan, rank_.comm.size()), options_.timeout);
  services.saver = std::make_unique<Saver>(
      Saver::Target{files_, settings_.run, {options_.keep_last, options_.keep_every}, {}}, part.plan,
      settings_.model, *part.parameters, ranks, rank_index());
  // Only for the first plan, because the profiled steps are among the first of the run.
  if (!options_.profile.empty() && !std::exchange(has_profiled_, true))
    services.profiler = std::make_unique<Profiler>(
        ProfileOptions{options_.profile, settings_.run, run_.spec.resumed.state.step, settings_.steps},
        part.plan, settings_.model, *part.engine, *part.parameters, ranks, rank_.events, rank_.line);
  return services;
}

TrainResult ModuleRankRun::train() {
  const bool keeps_records = rank_index() == 0;
  build_first_part();
  const TrainingHooks hooks{
      [&](const Plan& plan, std::int64_t step, std::int64_t first) {
        return read_batch(run_.data, description_, plan, step, first, options_.seed, rank_index());
      },
      [](const PlanPart&) { return std::nullopt; },
      [&](const PlanPart& part) { return make_services(part); },
  };
  std::optional<RunFolder> records;
  if (keeps_records) records = open_records(settings_.run, files_, run_.spec.resumed.state.step);
  ControlFolder requests(settings_.run);
  std::optional<PlanSwitchController::RequestSources> sources;
  if (keeps_records)
    sources.emplace(PlanSwitchController::RequestSources{
        requests, [](const Plan&) -> Feasible<Plan> {
          return infeasible("the planner does not support module models; pass a plan with --plan FILE");
        }});
  StepAgreement agreement(rank_.comm, options_.timeout);
  Training training(run_.spec, hooks, rank_, agreement, part_, run_.spec.resumed.state,
                    newest_epoch(settings_.run).value_or(0));
  PlanSwitchController switches(
      {settings_.model,
       rank_.comm,
       engine_options(),
       {.timeout = options_.timeout, .early = PrecopyMode::never}},
      part_, run_.spec.script, sources,
      [&](const PlanSwitch& next) {
        return memory_shortage(next, settings_.model, rank_index(), rank_.device);
      },
      training);
  try {
    StepsEnd end = training.run({.records = records ? &*records : nullptr, .switches = &switches});
    agreement.take();  // receives the votes that other ranks have already sent
    if (keeps_records) requests.close("the run has ended");
    return std::move(end.result);
  } catch (const std::exception&) {
    switches.release();
    if (keeps_records) requests.close("the run has failed");
    throw;
  }
}

// Copies the trained weights into the caller's modules. The weights are read from the checkpoint, because
// with ZeRO-3 no single rank has all of them.
void take_weights(const ModuleModel& model, const ModuleRun& run, const Path& checkpoint) {
  const TrainSettings& settings = run.spec.settings;
  const Plan plan = uniform_plan(
      settings.model,
      {.batch = settings.plan.batch, .sequence_length = 1, .precision = settings.plan.precision});
  Parameters parameters(plan, settings.model, 0, run.description.device, StorageMode::weights);
  restore(Checkpoint::open(checkpoint), settings.model, Restored::weights, parameters);
  const ModuleBinding binding(model, run.description, parameters);
}

void print_run_summary(const ModuleModel& model, const ModuleRun& run, at::Device device, StatusLine& line) {
  const TrainSettings& settings = run.spec.settings;
  line.print(fmt::format("model {}: {} parameters in {} parts", model.name,
                         with_commas(num_parameters(run.description.spec)), model.parts.size()));
  line.print(fmt::format("data: {} samples per epoch", with_commas(run.data.num_samples)));
  const auto threads = static_cast<int>(run.spec.options.threads);
  const int threads_per_rank = std::max(1, num_cores() / num_ranks(run.spec));
  print_plan_summary(settings, device, threads > 0 ? threads : threads_per_rank, line);
}

void check_settings(const ModuleModel& model, const TrainSettings& settings, Precision precision,
                    std::int64_t steps_done) {
  if (settings.plan.precision != precision)
    throw UserError("{}: the plan's precision is {}, but the modules were measured in {}; use --precision {}",
                    model.name, text(settings.plan.precision), text(precision),
                    text(settings.plan.precision));
  if (steps_done >= settings.steps)
    throw UserError("{} has completed its {} steps", settings.run.string(), steps_done);
  ensure_engine_supports(settings.plan, settings.model);
}

}  // namespace

TrainResult train(const ModuleModel& model, const ModuleData& data, TrainOptions options) {
  if (data.read == nullptr || data.num_samples < 1)
    throw UserError("{}: the data needs at least one sample and a read function", model.name);
  RealFileSystem files;
  NullSink events;
  ResumedRun resumed;
  OptionTable table;
  declare(table, options);
  mark_explicit_options(table);
  if (!options.resume.empty()) resumed = resume(options, table, files, events);
  const at::Device device = choose_device(options.device);
  const Precision precision = resolve_precision(options, {.is_gpu = device.is_cuda()}, nullptr);
  const ModuleDescription description = describe(model, data.read(0), precision, device);
  TrainSettings settings = resolve_custom(options, description.spec, data.num_samples);
  check_settings(model, settings, precision, resumed.state.step);
  check_fits(settings.plan, settings.model, device);
  options.switch_at = with_absolute_paths(options.switch_at);
  std::vector<ScriptedSwitch> script = read_switch_script(options.switch_at, settings.plan, settings.model);
  for (const ScriptedSwitch& scripted : script) ensure_engine_supports(scripted.plan, settings.model);
  if (!resumed.lock.is_held()) resumed.lock = FolderLock::take(settings.run);
  const RunSpec spec{options, std::move(settings), std::move(resumed), std::move(script)};
  const int size = num_ranks(spec);
  std::vector<ModuleModel> copies;
  for (int rank = 1; rank < size; ++rank) copies.push_back(copy_of(model));
  begin_run_folder(spec, &table, files);
  const ModuleRun run{data, description, spec};
  StatusLine line(stderr);
  print_run_summary(model, run, device, line);
  const TrainResult result = train_with_threads(
      spec.settings.run, spec.options, size, events, line, [&](const RankContext& context) {
        const auto rank = static_cast<std::size_t>(context.comm.rank());
        return ModuleRankRun(rank == 0 ? model : copies[rank - 1], run, context).train();
      });
  if (!copies.empty()) take_weights(model, run, result.checkpoint);
  return result;
}

}  // namespace optimus
