// Exports a plan for another trainer: the files with which Megatron-LM, DeepSpeed or torchtitan runs it, or
// an Optimus plan file.
//
// Those systems support grids of equal stages (plan/export_grid.h). A property that they cannot express is
// mapped to the nearest one that they support and recorded in a note. A plan that would train a different
// model or that could not run is refused with a UserError. Nothing is dropped silently. docs/use/export.md
// has the tables. Read next: plan/import.h, the opposite direction.
#pragma once

#include "base/file.h"
#include "plan/exported_plan.h"
#include "plan/plan.h"

namespace optimus {

// Throws UserError if the plan is not valid for the model, or if the trainer cannot run it.
ExportedPlan export_plan(const Plan& plan, const ModelSpec& model, Trainer trainer,
                         const ExportSettings& settings = {});

inline constexpr const char* kExportRecord = "optimus-export.json";

// Writes all files and a record of them (optimus-export.json), or nothing. An earlier export in the folder
// is replaced. A folder with any other content is refused. Throws ReportedError.
void write_export(FileSystem& files, const ExportedPlan& exported, const Path& folder);

}  // namespace optimus
