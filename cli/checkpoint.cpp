// optimus checkpoint list|verify|show RUN_OR_CHECKPOINT, optimus checkpoint clear RUN
#include "checkpoint/checkpoint.h"
#include "base/text.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/training_state.h"
#include "cli/command.h"
#include "elastic/memory_level.h"
#include "rundir/folder_lock.h"

namespace optimus {
namespace {

// Returns the JSON fields that `checkpoint list` prints. The other subcommands add more fields.
OrderedJson entry_json(const CheckpointEntry& entry) {
  return {{"step", entry.step}, {"bytes", entry.bytes.value}, {"whole", entry.is_whole}};
}

class CheckpointCommand : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add_positional("run", path_, "run folder or checkpoint folder").is_required = true;
  }

 protected:
  Path path_;
};

class CheckpointList final : public CheckpointCommand {
 public:
  int run(Console& console) override {
    OrderedJson list = OrderedJson::array();
    std::string output;
    for (const CheckpointEntry& entry : checkpoints_at(path_)) {
      list.push_back(entry_json(entry));
      output += fmt::format("step {:<10} {:>10}  {}{}\n", entry.step, text(entry.bytes),
                            entry.folder.filename().string(), entry.is_whole ? "  complete" : "  incomplete");
    }
    console.result({{"checkpoints", list}}, output.empty() ? "no checkpoints\n" : output);
    return 0;
  }
};

class CheckpointVerify final : public CheckpointCommand {
 public:
  int run(Console& console) override {
    OrderedJson list = OrderedJson::array();
    std::string output, first_problem;
    for (CheckpointEntry& entry : checkpoints_at(path_)) {
      const std::string name = entry.folder.filename().string();
      const bool is_leftover = !entry.is_whole && name.find(".tmp-") != std::string::npos;
      const std::string problem = is_leftover ? "" : problem_of(entry, console);
      if (first_problem.empty()) first_problem = problem;
      entry.is_whole = entry.is_whole && problem.empty();
      list.push_back(entry_json(entry));
      if (!problem.empty()) list.back()["problem"] = problem;
      output += fmt::format("{:<18} {:>10}  {}\n", name, text(entry.bytes),
                            is_leftover       ? "incomplete: the save is in progress or was interrupted"
                            : problem.empty() ? "complete, all checksums match"
                                              : problem);
    }
    console.result({{"checkpoints", list}}, output.empty() ? "no checkpoints\n" : output);
    if (!first_problem.empty()) throw RuntimeFailure("{}", first_problem);
    return 0;
  }

 private:
  // Returns one line that describes what is wrong with the checkpoint, or an empty string if all checksums
  // match.
  static std::string problem_of(const CheckpointEntry& entry, Console& console) {
    try {
      Checkpoint::open(entry.folder).verify(console);
    } catch (const ReportedError& error) {
      return error.what();
    }
    return entry.is_whole ? "" : entry.folder.string() + " contains a checkpoint of a different step";
  }
};

class CheckpointClear final : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add_positional("run", run_, "run folder").is_required = true;
  }
  int run(Console& console) override {
    std::error_code error;
    if (!std::filesystem::exists(run_ / "settings.toml", error))
      throw UserError("{}: not a run folder (settings.toml is missing)", run_.string());
    const FolderLock lock = FolderLock::take(run_);
    const std::optional<Path> folder = find_memory_level(run_);
    RealFileSystem files;
    value_or_throw(remove_memory_level(files, run_));
    console.result({{"removed", folder ? Json(folder->string()) : Json()}},
                   folder ? fmt::format("removed {}\n", folder->string())
                          : "this host's memory contains no state of the run\n");
    return 0;
  }

 private:
  Path run_;
};

class CheckpointShow final : public CheckpointCommand {
 public:
  int run(Console& console) override {
    const Checkpoint checkpoint = Checkpoint::open(find_checkpoint(path_));
    const Manifest& manifest = checkpoint.manifest();
    std::int64_t num_parameters = 0;
    for (const CheckpointTensor& tensor : manifest.tensors) num_parameters += tensor.shape.num_elements();
    OrderedJson fields = OrderedJson::array(), files = OrderedJson::array();
    std::vector<std::string> field_words;
    for (const StateField field : kStateFields)
      if (manifest.has_field(field)) fields.push_back(text(field)), field_words.emplace_back(text(field));
    std::string output =
        fmt::format("{}\nstep {}, {} in {} files\n{} parameters in {} tensors, stored as {} pieces: {}\n",
                    checkpoint.folder().string(), checkpoint.step(), text(manifest.bytes()),
                    manifest.files.size(), with_commas(num_parameters), manifest.tensors.size(),
                    manifest.pieces.size(), join(field_words, ", "));
    OrderedJson json = entry_json(checkpoints_at(checkpoint.folder()).front());
    json["folder"] = checkpoint.folder().string();
    json["parameters"] = num_parameters;
    json["tensors"] = manifest.tensors.size();
    json["pieces"] = manifest.pieces.size();
    json["fields"] = fields;
    if (checkpoint.has_file(kTrainingStateFile)) show_state(checkpoint, json, output);
    for (const CheckpointFile& file : manifest.files) {
      files.push_back({{"name", file.name}, {"bytes", file.bytes.value}});
      output += fmt::format("  {:<28} {:>10}\n", file.name, text(file.bytes));
    }
    json["files"] = files;
    console.result({{"checkpoints", {json}}}, output);
    return 0;
  }

 private:
  static void show_state(const Checkpoint& checkpoint, OrderedJson& json, std::string& output) {
    const std::string source = (checkpoint.folder() / kTrainingStateFile).string();
    const std::string content = checkpoint.small_file(kTrainingStateFile);
    const TrainingState state = parse_training_state(content, source);
    json["state"] = OrderedJson::parse(content);
    output += fmt::format("{} updates, {} samples consumed, seed {}, {}\n", state.num_updates,
                          with_commas(state.num_samples), state.seed, text(state.precision));
  }
};

}  // namespace

std::unique_ptr<Command> make_checkpoint_list_command() { return std::make_unique<CheckpointList>(); }
std::unique_ptr<Command> make_checkpoint_verify_command() { return std::make_unique<CheckpointVerify>(); }
std::unique_ptr<Command> make_checkpoint_clear_command() { return std::make_unique<CheckpointClear>(); }
std::unique_ptr<Command> make_checkpoint_show_command() { return std::make_unique<CheckpointShow>(); }

}  // namespace optimus
