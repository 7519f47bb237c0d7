// See resume.h.
#include "run/resume.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoints.h"

namespace optimus {
namespace {

constexpr std::array kLayoutOptions = {"devices", "plan"};

bool is_given(const Option& option) { return option.origin > Origin::run; }

// A setting of the run must not take the place of these.
std::vector<Option*> layout_options_to_drop(OptionTable& table) {
  std::vector<Option*> options;
  for (const char* name : kLayoutOptions)
    if (Option* option = table.find(name)) options.push_back(option);
  const bool drops = std::any_of(options.begin(), options.end(), [](Option* o) { return is_given(*o); });
  if (!drops) return {};
  std::erase_if(options, [](Option* option) { return is_given(*option); });
  return options;
}

void take_settings(OptionTable& table, const Path& run) {
  const std::vector<Option*> dropped = layout_options_to_drop(table);
  Option* const folder = table.find("run");
  const Origin folder_origin = folder->origin;
  // With this origin nothing of the run replaces them.
  for (Option* option : dropped) option->origin = Origin::file;
  folder->origin = Origin::file;
  read_config_file(table, run / "settings.toml", {}, Origin::run);
  for (Option* option : dropped) option->origin = Origin::built_in;
  folder->origin = folder_origin;
}

void mark_given(OptionTable& table) {
  TrainOptions defaults;
  OptionTable usual;
  declare(usual, defaults);
  for (Option* option : table.options())
    if (option->value() != usual.find(option->name)->value()) option->origin = Origin::flag;
}

// The newest that is sound.
std::optional<Path> sound_checkpoint(const Path& run, EventSink& events) {
  std::vector<CheckpointEntry> all = list_checkpoints(run);
  std::reverse(all.begin(), all.end());
  bool has_damaged = false;
  for (const CheckpointEntry& entry : all) {
    if (!entry.is_whole) continue;
    try {
      Checkpoint::open(entry.folder).verify(events);
      return entry.folder;
    } catch (const UserError& error) {
      has_damaged = true;
      events.report(Warning{fmt::format("{}; an older checkpoint is looked for", error.what())});
    }
  }
  if (has_damaged) throw UserError("{}: no checkpoint of this run is sound", run.string());
  return std::nullopt;
}

}  // namespace

ResumedRun resume(TrainOptions& options, OptionTable* table, FileSystem& files, EventSink& events) {
  const Path run = options.resume;
  std::error_code error;
  if (!std::filesystem::exists(run / "settings.toml", error))
    throw UserError("--resume {}: no run lies there (it would have a settings.toml)", run.string());
  if (!options.run.empty() &&
      std::filesystem::weakly_canonical(options.run, error) != std::filesystem::weakly_canonical(run, error))
    throw UsageError("--run {} and --resume {}: a run goes on in its own folder; leave --run away",
                     options.run.string(), run.string());
  if (table != nullptr) {
    take_settings(*table, run);
  } else {
    OptionTable own;
    declare(own, options);
    mark_given(own);
    take_settings(own, run);
  }
  options.run = run, options.resume = run;
  value_or_throw(clear_leftovers(files, run));
  ResumedRun resumed{.checkpoint = sound_checkpoint(run, events), .state = {}};
  if (resumed.checkpoint) {
    const Checkpoint checkpoint = Checkpoint::open(*resumed.checkpoint);
    resumed.state = parse_training_state(checkpoint.small_file(kTrainingStateFile),
                                         (*resumed.checkpoint / kTrainingStateFile).string());
  } else {
    events.report(Warning{fmt::format("{} has no checkpoint; it begins again", run.string())});
  }
  return resumed;
}

}  // namespace optimus
