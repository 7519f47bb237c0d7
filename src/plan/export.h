// Exports a plan for another trainer: writes the files that Megatron-LM, DeepSpeed or torchtitan needs to run
// the plan, or an Optimus plan file.
//
// These trainers support grids of equal stages (plan/export_grid.h). A property that they cannot express is
// replaced by the closest supported one, and a note records the change. A plan that would train a different
// model or that could not run is rejected with a UserError. Nothing is dropped silently. docs/use/export.md
// has the tables. Read next: plan/import.h, the inverse.
#pragma once

#include "base/file.h"
#include "plan/exported_plan.h"
#include "plan/plan.h"

namespace optimus {

// Throws UserError if the plan is not valid for the model, or if the trainer cannot run it.
ExportedPlan export_plan(const Plan& plan, const ModelSpec& model, Trainer trainer,
                         const ExportSettings& settings = {});

inline constexpr const char* kExportRecord = "optimus-export.json";

// Writes either all files and a record of them (optimus-export.json), or nothing. Replaces an earlier export
// in the folder. Rejects a folder with any other content. Throws ReportedError.
void write_export(FileSystem& files, const ExportedPlan& exported, const Path& folder);

}  // namespace optimus
