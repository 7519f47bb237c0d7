// Implements plan_export.h.
#include "cli/plan_export.h"

#include "checkpoint/open_model.h"
#include "plan/describe.h"
#include "plan/plan_json.h"

namespace optimus {

void declare(OptionTable& table, PlanExportOptions& options) {
  table.add("export", options.trainer, "megatron|deepspeed|torchtitan|optimus",
            "trainer for which to write the plan as files into --out");
  table.add("out", options.out, "DIR",
            "with --export: output folder, which is new or contains an earlier export");
  table.add("devices-per-node", options.devices_per_node, "N",
            "with --export: number of processes per node (default: that of the cluster, or 8)");
  table.add("lr", options.settings.learning_rate, "X", "with --export: peak learning rate");
  table.add("steps", options.settings.steps, "N", "with --export: number of training steps");
  table.add("data", options.settings.data, "D",
            "with --export: location of the data, in the form that the trainer expects");
  table.add("tokenizer", options.settings.tokenizer, "DIR",
            "with --export: Hugging Face folder of the tokenizer");
}

std::string export_if_requested(const PlanExportOptions& options, const Plan& plan, const ModelSpec& model,
                                OrderedJson& result, int default_devices_per_node) {
  if (options.trainer.empty()) {
    if (!options.out.empty()) throw UsageError("--out requires --export");
    return "";
  }
  const Trainer trainer = parse_trainer(options.trainer, "--export");
  if (options.out.empty()) throw UsageError("--export {} requires --out DIR", options.trainer);
  ExportSettings settings = options.settings;
  settings.devices_per_node = options.devices_per_node.value_or(default_devices_per_node);
  if (settings.devices_per_node < 1)
    throw UsageError("--devices-per-node: expected at least 1, got {}", settings.devices_per_node);
  if (settings.steps < 1) throw UsageError("--steps: expected at least 1, got {}", settings.steps);
  const ExportedPlan exported = export_plan(plan, model, trainer, settings);
  RealFileSystem files;
  write_export(files, exported, options.out);
  OrderedJson names = OrderedJson::array();
  std::string output = fmt::format("written for {}:\n", options.trainer);
  for (const ExportedFile& file : exported.files) {
    names.push_back(file.name);
    output += fmt::format("  {}\n", (options.out / file.name).string());
  }
  for (const std::string& note : exported.notes) output += "note: " + note + "\n";
  result["export"] = {{"trainer", options.trainer},
                      {"folder", options.out.string()},
                      {"files", names},
                      {"notes", exported.notes}};
  return output;
}

void declare(OptionTable& table, PlanImportOptions& options) {
  table.add("import", options.file, "FILE",
            "read the plan from a Megatron-LM launch script or a DeepSpeed JSON file");
  table.add("devices", options.devices, "N",
            "with --import: number of devices, if the file does not specify it");
}

ImportedPlan read_requested_import(const PlanImportOptions& options, const ModelOptions& model,
                                   std::optional<std::int64_t> batch,
                                   std::optional<std::int64_t> sequence_length) {
  ImportRequest request{{}, options.devices, batch, sequence_length, model.overrides.vocab};
  if (!model.model.empty()) {
    ModelOptions model_options = model;
    model_options.model = model_path_of(model.model);
    request.model = resolve(model_options);
  }
  return read_import(options.file, request);
}

OrderedJson imported_json(const ImportedPlan& imported) {
  return {{"plan", to_json(imported.plan)},
          {"import",
           {{"trainer", text(imported.trainer)},
            {"model", imported.model.name},
            {"devices", num_devices(imported.plan)},
            {"understood", imported.understood},
            {"ignored", imported.ignored},
            {"unknown", imported.unknown},
            {"notes", imported.notes}}}};
}

std::string imported_text(const ImportedPlan& imported) {
  std::string output = picture(imported.plan) + "\n";
  for (const std::string& note : imported.notes) output += "note: " + note + "\n";
  output += fmt::format("understood: {} arguments; irrelevant to the plan: {}\n", imported.understood.size(),
                        imported.ignored.size());
  for (const std::string& argument : imported.unknown) output += "unknown: " + argument + "\n";
  return output;
}

}  // namespace optimus
