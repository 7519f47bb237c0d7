// Implements resume.h.
#include "settings/resume.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoints.h"
#include "elastic/host_memory.h"
#include "elastic/memory_level.h"

namespace optimus {
namespace {

// If any option in `given` is given again, the values of all options in `dropped` that the run has saved are
// dropped.
struct DropRule {
  std::vector<const char*> given, dropped;
};
// The devices, the plan and its constraints belong together.
const std::vector<const char*>& layout_options() {
  static const std::vector<const char*> names = {"devices",    "plan",    "tp",      "pp",       "dp",
                                                 "cp",         "ep",      "zero",    "schedule", "chunks",
                                                 "max-memory", "offload", "no-zero3"};
  return names;
}
const std::vector<DropRule>& dropped_options() {
  static const std::vector<DropRule> rules = {
      {layout_options(), layout_options()},
      {{"devices", "plan", "batch", "seq"}, {"microbatch"}},
      {{"recompute"}, {"recompute-layers"}},
      {{"policy"}, {"learned", "conditions"}},
      // These options change the input of the planner, so a new plan is chosen.
      {{"batch", "seq", "microbatch", "recompute", "recompute-layers", "precision", "batch-ramp", "seq-ramp",
        "device", "mtbf", "history"},
       {"plan"}},
  };
  return rules;
}

bool is_explicit(const Option& option) { return option.origin > Origin::run; }

// The options whose saved values must be ignored.
std::vector<Option*> options_to_drop(OptionTable& table) {
  std::vector<Option*> result;
  for (const DropRule& rule : dropped_options()) {
    if (std::none_of(rule.given.begin(), rule.given.end(),
                     [&](const char* name) { return is_explicit(*table.find(name)); }))
      continue;
    for (const char* name : rule.dropped)
      if (Option* option = table.find(name); !is_explicit(*option)) result.push_back(option);
  }
  return result;
}

void load_run_settings(OptionTable& table, const Path& run) {
  const std::vector<Option*> dropped = options_to_drop(table);
  Option* const folder = table.find("run");
  const Origin folder_origin = folder->origin;
  // With this origin, the settings of the run do not replace their values.
  for (Option* option : dropped) option->origin = Origin::file;
  folder->origin = Origin::file;
  read_config_file(table, run / "settings.toml", {}, Origin::run);
  for (Option* option : dropped) option->origin = Origin::built_in;
  folder->origin = folder_origin;
  // The run's folder contains the current plan, no matter how it was chosen. The planner could now choose a
  // different plan, because it may have more information.
  Option* const plan = table.find("plan");
  const bool is_dropped = std::find(dropped.begin(), dropped.end(), plan) != dropped.end();
  std::error_code error;
  const bool has_plan = std::filesystem::exists(run / "plan.json", error);
  if (plan->origin == Origin::run || (!is_explicit(*plan) && !is_dropped && has_plan))
    table.set(*plan, {(run / "plan.json").string()}, Origin::run);
}

}  // namespace

void mark_explicit_options(OptionTable& table) {
  TrainOptions defaults;
  OptionTable default_table;
  declare(default_table, defaults);
  for (Option* option : table.options())
    if (option->value() != default_table.find(option->name)->value()) option->origin = Origin::flag;
}

namespace {

// The newest valid checkpoint. Interrupted saves have already been removed, so an incomplete folder is
// damaged.
std::optional<Path> newest_valid_checkpoint(const Path& run, const std::optional<Path>& memory,
                                            EventSink& events) {
  std::vector<CheckpointEntry> checkpoints = list_checkpoints(run);
  if (memory) {
    const std::vector<CheckpointEntry> in_memory = list_checkpoints(*memory);
    checkpoints.insert(checkpoints.begin(), in_memory.begin(), in_memory.end());
  }
  std::stable_sort(checkpoints.begin(), checkpoints.end(),
                   [](const auto& a, const auto& b) { return a.step < b.step; });
  std::reverse(checkpoints.begin(),
               checkpoints.end());  // newest first; for the same step, the checkpoint on disk comes first
  bool found_damaged = false;
  for (const CheckpointEntry& entry : checkpoints) {
    try {
      const Checkpoint checkpoint = Checkpoint::open(entry.folder);
      checkpoint.verify(events);
      if (entry.is_whole) return entry.folder;
      throw UserError("{} contains step {}", entry.folder.string(), checkpoint.step());
    } catch (const ReportedError& error) {
      found_damaged = true;
      events.report(Warning{fmt::format("{}; trying an older checkpoint", error.what())});
    }
  }
  if (found_damaged) throw RuntimeFailure("{}: all checkpoints of the run are damaged", run.string());
  return std::nullopt;
}

}  // namespace

ResumedRun resume(TrainOptions& options, OptionTable& table, FileSystem& files, EventSink& events) {
  const Path run = options.resume;
  std::error_code error;
  if (std::filesystem::exists(run / kManifestFile, error))
    throw UserError(
        "--resume {}: expected a run folder, got a checkpoint; specify its run, or start a new run with "
        "--model {}",
        run.string(), run.string());
  if (!std::filesystem::exists(run / "settings.toml", error))
    throw UserError("--resume {}: not a run folder (settings.toml is missing); use --model to load a model",
                    run.string());
  if (!options.run.empty() &&
      std::filesystem::weakly_canonical(options.run, error) != std::filesystem::weakly_canonical(run, error))
    throw UsageError(
        "--run {} conflicts with --resume {}, because a run is resumed in its own folder; remove --run",
        options.run.string(), run.string());
  ResumedRun resumed;
  resumed.lock = FolderLock::take(run);
  load_run_settings(table, run);
  options.run = run, options.resume = run;
  value_or_throw(clear_leftovers(files, run));
  export_host_memory(run);
  if (const auto step = commit_host_memory(files, run))
    events.report(Warning{fmt::format("restored the checkpoint of step {} from host memory", *step)});
  const std::optional<Path> memory = find_memory_level(run);
  if (memory) value_or_throw(clear_leftovers(files, *memory));
  resumed.checkpoint = newest_valid_checkpoint(run, memory, events);
  if (resumed.checkpoint) {
    const Checkpoint checkpoint = Checkpoint::open(*resumed.checkpoint);
    resumed.state = parse_training_state(checkpoint.small_file(kTrainingStateFile),
                                         (*resumed.checkpoint / kTrainingStateFile).string());
  } else {
    events.report(Warning{fmt::format("{} has no checkpoint; restarting from step 0", run.string())});
  }
  return resumed;
}

}  // namespace optimus
