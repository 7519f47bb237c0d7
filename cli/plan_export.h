// --export and --import, as the commands that have a plan share them: plan and explain.
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
  std::string trainer;  // empty: nothing is exported
  Path out;
  std::optional<int> devices_per_node;  // default: the cluster's
  ExportSettings settings;
};
void declare(OptionTable& table, PlanExportOptions& options);

// Writes the files when they are asked for, adds "export" to the result, and returns what to show. `usual` is how many devices
// the cluster's nodes have. Throws UserError, also when --out is missing.
std::string export_asked(const PlanExportOptions& options, const Plan& plan, const ModelSpec& model,
                         OrderedJson& result, int usual = 8);

struct PlanImportOptions {
  Path file;  // empty: nothing is imported
  std::optional<int> devices;
};
void declare(OptionTable& table, PlanImportOptions& options);

// The plan in the file. The model, its dimensions, batch and sequence length go before what the file says. Throws UserError.
ImportedPlan import_asked(const PlanImportOptions& options, const ModelOptions& model,
                          std::optional<std::int64_t> batch, std::optional<std::int64_t> sequence_length);
// The plan, and which arguments were understood.
OrderedJson imported_json(const ImportedPlan& imported);
std::string imported_text(const ImportedPlan& imported);

}  // namespace optimus
