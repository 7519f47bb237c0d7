// See include/optimus/module.h.
#include "optimus/module.h"

#include "base/error.h"
#include "engine/module_block.h"
#include "run/memory.h"
#include "run/resume.h"
#include "run/saver.h"
#include "run/training.h"

namespace optimus {

TrainResult train(const ModuleModel& model, const ModuleData& data, TrainOptions options) {
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
  const int threads = set_num_threads(static_cast<int>(options.threads));
  const Precision precision = resolve_precision(options, {.is_gpu = device.is_cuda()}, nullptr);
  const ModuleFacts facts = describe(model, data.read(0), precision, device);
  const TrainSettings settings = resolve_custom(options, facts.spec, data.num_samples);
  if (settings.plan.precision != precision)
    throw UserError("{}: the plan's precision is {}, the blocks were measured in {}; say --precision {}",
                    model.name, text(settings.plan.precision), text(precision),
                    text(settings.plan.precision));
  if (resumed.state.step >= settings.steps)
    throw UserError("{} has done its {} steps", settings.run.string(), resumed.state.step);
  refuse_too_large(settings.plan, settings.model, device);
  StatusLine line(stderr);
  line.print(fmt::format("model {}: {} parameters in {} parts", model.name,
                         with_commas(num_parameters(facts.spec)), model.parts.size()));
  line.print(fmt::format("data: {} samples an epoch", with_commas(data.num_samples)));
  say_how_it_runs(settings, device, threads, line);

  Parameters parameters(settings.plan, settings.model, 0, device);
  const LentModules lent(model, facts, parameters);
  if (resumed.checkpoint)
    restore(Checkpoint::open(*resumed.checkpoint), settings.model, Restored::everything, parameters);
  Engine engine(settings.plan, settings.model, parameters,
                {.device = device, .seed = options.seed, .make_custom_block = lent.blocks()});
  if (!resumed.lock.is_held()) resumed.lock = FolderLock::take(settings.run);
  RunFolder folder = open_run_folder(settings, options, &table, files, resumed.state.step);
  const Course course{
      [&](std::int64_t step, std::int64_t first) {
        return read_batch(data, facts, settings.plan, step, first, options.seed);
      },
      [](Engine&) { return std::nullopt; },
  };
  Saver saver({files, settings.run, {options.keep_last, options.keep_every}, {}}, settings.plan,
              settings.model, parameters);
  return Training(options, settings, course, engine, parameters, resumed.state, events, line)
      .run(&folder, saver);
}

}  // namespace optimus
