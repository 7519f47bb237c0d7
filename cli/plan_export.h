// The flags --export and --import of the commands plan and explain.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "base/options.h"
#include "model/options.h"
#include "plan/export.h"
#include "plan/import.h"

namespace optimus {

struct PlanExportOptions {
  std::string trainer;  // empty if no export is requested
  Path out;
  std::optional<int> devices_per_node;  // default: that of the cluster
  ExportSettings settings;
};
void declare(OptionTable& table, PlanExportOptions& options);

// If an export is requested, writes the files, adds "export" to the result, and returns the text to show.
// `default_devices_per_node` is the number of devices per node of the cluster. Throws UserError, for example
// if --out is missing.
std::string export_if_requested(const PlanExportOptions& options, const Plan& plan, const ModelSpec& model,
                                OrderedJson& result, int default_devices_per_node = 8);

struct PlanImportOptions {
  Path file;  // empty if no import is requested
  std::optional<int> devices;
};
void declare(OptionTable& table, PlanImportOptions& options);

// Reads the plan from the file. The given model, its dimensions, the batch and the sequence length take
// precedence over those in the file. Throws UserError.
ImportedPlan read_requested_import(const PlanImportOptions& options, const ModelOptions& model,
                                   std::optional<std::int64_t> batch,
                                   std::optional<std::int64_t> sequence_length);
// Describe the imported plan and which of the trainer's arguments were recognized.
OrderedJson imported_json(const ImportedPlan& imported);
std::string imported_text(const ImportedPlan& imported);

}  // namespace optimus
