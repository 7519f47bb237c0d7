// See include/optimus/module.h.
#include "optimus/module.h"

#include "base/error.h"
#include "engine/module_block.h"
#include "run/memory.h"
#include "run/profile.h"
#include "run/resume.h"
#include "run/saver.h"
#include "run/train_threads.h"
#include "run/training.h"

namespace optimus {
namespace {

struct ModuleRun {
  const ModuleData& data;
  const TrainOptions& options;
  const ModuleFacts& facts;
  const TrainSettings& settings;
  const ResumedRun& resumed;
};

// One rank's part, with modules of its own.
TrainResult train_modules(const ModuleModel& model, const ModuleRun& run, const RankPart& part) {
  const TrainSettings& settings = run.settings;
  const TrainOptions& options = run.options;
  const int rank = part.comm.rank();
  ModuleFacts facts = run.facts;
  facts.device = part.device;
  RealFileSystem files;
  PlanPart own{.plan = settings.plan,
               .parameters = std::make_unique<Parameters>(settings.plan, settings.model, rank, part.device)};
  Parameters& parameters = *own.parameters;
  const LentModules lent(model, facts, parameters);
  if (run.resumed.checkpoint)
    restore(Checkpoint::open(*run.resumed.checkpoint), settings.model, Restored::everything, parameters);
  const bool is_alone = num_devices(settings.plan) == 1;
  EngineOptions engine_options{.device = part.device, .seed = options.seed};
  engine_options.make_custom_block = lent.blocks();
  engine_options.rank = rank, engine_options.patience = options.patience;
  if (!is_alone) engine_options.comm = &part.comm;
  own.engine = std::make_unique<Engine>(settings.plan, settings.model, parameters, engine_options);
  if (!is_alone)
    done_or_throw(
        part.comm.connect(0, own.engine->groups(), Deadline::after(options.patience, "connecting")));
  const Agreement ranks(is_alone ? nullptr : &part.comm, world_of(settings.plan, part.comm.size()),
                        options.patience);
  std::optional<RunFolder> records;
  if (rank == 0) records = open_records(settings.run, files, run.resumed.state.step);
  const Course course{
      [&](const Plan& plan, std::int64_t step, std::int64_t first) {
        return read_batch(run.data, facts, plan, step, first, options.seed, rank);
      },
      [](const PlanPart&) { return std::nullopt; },
      [&](const PlanPart& kept) {
        PartKeepers made;
        made.saver = std::make_unique<Saver>(
            Saver::Target{files, settings.run, {options.keep_last, options.keep_every}, {}}, kept.plan,
            settings.model, *kept.parameters, ranks, rank);
        if (!options.profile.empty())
          made.profiler = std::make_unique<Profiler>(
              ProfileOptions{options.profile, settings.run, run.resumed.state.step, settings.steps},
              kept.plan, settings.model, *kept.engine, *kept.parameters, ranks, part.events, part.line);
        return made;
      },
  };
  return Training(options, settings, course, own, run.resumed.state,
                  {part.comm, part.agreement, part.is_asked}, part.events, part.line)
      .run(records ? &*records : nullptr);
}

// With ZeRO 3 no rank has all weights; the checkpoint has.
void take_weights(const ModuleModel& model, const ModuleRun& run, const Path& checkpoint) {
  const Plan one = uniform_plan(
      run.settings.model,
      {.batch = run.settings.plan.batch, .sequence_length = 1, .precision = run.settings.plan.precision});
  Parameters whole(one, run.settings.model, 0, run.facts.device, Keeping::weights);
  const LentModules lent(model, run.facts, whole);
  restore(Checkpoint::open(checkpoint), run.settings.model, Restored::weights, whole);
}

void say_what_runs(const ModuleModel& model, const ModuleRun& run, at::Device device, StatusLine& line) {
  const int ranks = num_devices(run.settings.plan);
  line.print(fmt::format("model {}: {} parameters in {} parts", model.name,
                         with_commas(num_parameters(run.facts.spec)), model.parts.size()));
  line.print(fmt::format("data: {} samples an epoch", with_commas(run.data.num_samples)));
  const auto threads = static_cast<int>(run.options.threads);
  say_how_it_runs(run.settings, device, threads > 0 ? threads : std::max(1, num_cores() / ranks), line);
}

}  // namespace

TrainResult train(const ModuleModel& model, const ModuleData& data, TrainOptions options) {
  if (!options.switch_at.empty())
    throw UserError("{}: a model of modules keeps its plan, leave switch_at away", model.name);
  if (data.read == nullptr || data.num_samples < 1)
    throw UserError("{}: the data needs at least one sample and a function that reads it", model.name);
  RealFileSystem files;
  NullSink events;
  ResumedRun resumed;
  OptionTable table;
  declare(table, options);
  mark_given(table);
  if (!options.resume.empty()) resumed = resume(options, table, files, events);
  const at::Device device = choose_device(options.device);
  const Precision precision = resolve_precision(options, {.is_gpu = device.is_cuda()}, nullptr);
  const ModuleFacts facts = describe(model, data.read(0), precision, device);
  const TrainSettings settings = resolve_custom(options, facts.spec, data.num_samples);
  if (settings.plan.precision != precision)
    throw UserError("{}: the plan's precision is {}, the blocks were measured in {}; say --precision {}",
                    model.name, text(settings.plan.precision), text(precision),
                    text(settings.plan.precision));
  if (resumed.state.step >= settings.steps)
    throw UserError("{} has done its {} steps", settings.run.string(), resumed.state.step);
  ensure_engine_supports(settings.plan, settings.model);
  refuse_too_large(settings.plan, settings.model, device);
  if (!resumed.lock.is_held()) resumed.lock = FolderLock::take(settings.run);
  begin_run_folder(settings, options, &table, files);
  const ModuleRun run{data, options, facts, settings, resumed};
  std::vector<ModuleModel> copies;
  for (int rank = 1; rank < num_devices(settings.plan); ++rank) copies.push_back(copy_of(model));
  StatusLine line(stderr);
  say_what_runs(model, run, device, line);
  const TrainResult result = train_with_threads(
      settings.run, options, num_devices(settings.plan), events, line, [&](const RankPart& part) {
        const auto rank = static_cast<std::size_t>(part.comm.rank());
        return train_modules(rank == 0 ? model : copies[rank - 1], run, part);
      });
  if (!copies.empty()) take_weights(model, run, result.checkpoint);
  return result;
}

}  // namespace optimus
