// Implements export.h. The files of each trainer are generated in export_megatron.cpp, export_deepspeed.cpp
// and export_torchtitan.cpp.
#include "plan/export.h"

#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "plan/export_grid.h"
#include "plan/plan_json.h"
#include "plan/validate.h"

namespace optimus {
namespace {

std::string record_text(const ExportedPlan& exported) {
  OrderedJson json = {{"format", "optimus-export"}, {"version", 1}, {"trainer", text(exported.trainer)}};
  json["files"] = OrderedJson::array();
  for (const ExportedFile& file : exported.files) json["files"].push_back(file.name);
  json["notes"] = exported.notes;
  return json.dump(2) + "\n";
}

// The names of the files that an earlier export wrote into the folder, including its record. Empty if the
// folder is not an Optimus export.
std::vector<std::string> earlier_files(const Path& folder) {
  const Path record = folder / kExportRecord;
  if (!std::filesystem::is_regular_file(record)) return {};
  const Json document = parse_json(value_or_throw(read_file(record, Bytes(1 << 20))), record.string());
  std::vector<std::string> names = {kExportRecord};
  const JsonView view(document, record.string());
  for (const JsonView& name : view.at("files").elements()) names.push_back(name.text());
  return names;
}

// Throws if the folder has any content that an export did not write. Returns the files that may be removed.
std::vector<std::string> replaceable_files(const Path& folder) {
  std::error_code error;
  const auto status = std::filesystem::status(folder, error);
  if (!std::filesystem::exists(status)) return {};
  if (!std::filesystem::is_directory(status))
    throw UserError("--out: {} is a file; specify a folder", folder.string());
  const std::vector<std::string> known_names = earlier_files(folder);
  std::vector<std::string> existing_names;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (std::find(known_names.begin(), known_names.end(), name) == known_names.end() || entry.is_directory())
      throw UserError(
          "--out: {} contains {}, which is not from an earlier export; specify an empty or new folder",
          folder.string(), in_quotes(name));
    existing_names.push_back(name);
  }
  if (error) throw RuntimeFailure("--out: cannot read {}: {}", folder.string(), error.message());
  return existing_names;
}

void remove_folder(FileSystem& files, const Path& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) (void)files.remove(folder / name);
  (void)files.remove(folder);
}

Outcome<void> write_all(FileSystem& files, const ExportedPlan& exported, const Path& folder) {
  if (Outcome<void> result = files.create_folders(folder); !result) return result;
  for (const ExportedFile& file : exported.files) {
    if (Outcome<void> result = write_atomically(files, folder / file.name, file.text); !result) return result;
    if (!file.is_executable) continue;
    std::error_code error;
    std::filesystem::permissions(folder / file.name, std::filesystem::perms(0755), error);
    if (error)
      return failure("cannot make {} executable: {}", (folder / file.name).string(), error.message());
  }
  return write_atomically(files, folder / kExportRecord, record_text(exported));
}

// Replaces the old folder with the new one. If this fails, the old folder is restored.
Outcome<void> exchange_folders(FileSystem& files, const Path& staging, const Path& folder, const Path& backup,
                               bool folder_exists) {
  if (folder_exists)
    if (Outcome<void> result = files.rename(folder, backup); !result) return result;
  Outcome<void> result = files.rename(staging, folder);
  if (result || !folder_exists) return result;
  if (!files.rename(backup, folder))
    return failure("{}; the earlier export was moved to {}", result.error().why, backup.string());
  return result;
}

}  // namespace

ExportedPlan export_plan(const Plan& plan, const ModelSpec& model, Trainer trainer,
                         const ExportSettings& settings) {
  validate(plan, model, "plan");
  ExportedPlan exported{trainer, {}, {}};
  if (model.is_custom() && trainer != Trainer::optimus)
    throw UserError(
        "{} does not support models of custom blocks such as {}; only transformers can be exported",
        display_name(trainer), model.name);
  switch (trainer) {
    case Trainer::megatron:
      add_megatron_files(plan, model, settings, exported);
      break;
    case Trainer::deepspeed:
      add_deepspeed_files(plan, model, settings, exported);
      break;
    case Trainer::torchtitan:
      add_torchtitan_files(plan, model, settings, exported);
      break;
    case Trainer::optimus:
      break;
  }
  exported.files.push_back({"plan.json", plan_text(plan), false});
  return exported;
}

void write_export(FileSystem& files, const ExportedPlan& exported, const Path& requested_folder) {
  std::error_code error;
  Path folder = std::filesystem::weakly_canonical(std::filesystem::absolute(requested_folder, error), error);
  if (error || requested_folder.empty())
    throw UserError("--out: {} is not a folder name", in_quotes(requested_folder.string()));
  if (!folder.has_filename()) folder = folder.parent_path();
  const std::vector<std::string> old_names = replaceable_files(folder);
  const bool folder_exists = std::filesystem::exists(folder);
  Path staging = folder, backup = folder;
  staging += fmt::format(".tmp-{}", ::getpid());
  backup += fmt::format(".old-{}", ::getpid());
  std::vector<std::string> names = {kExportRecord};
  for (const ExportedFile& file : exported.files) names.push_back(file.name);
  Outcome<void> result = write_all(files, exported, staging);
  if (result) result = exchange_folders(files, staging, folder, backup, folder_exists);
  if (!result) {
    remove_folder(files, staging, names);
    throw RuntimeFailure("{}", result.error().why);
  }
  if (folder_exists) remove_folder(files, backup, old_names);
  (void)files.sync_folder(folder.parent_path());
}

}  // namespace optimus
