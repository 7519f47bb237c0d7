// optimus convert FROM TO, and optimus export RUN|CHECKPOINT --out DIR: converts a model between formats.
// Comparing the logits of the original and the result needs `optimus-engine`, which links libtorch. With
// --no-check, this program writes the same files itself.
#include "cli/command.h"
#include "cli/training.h"

namespace optimus {
namespace {

int convert_and_check(const ConvertOptions& options, Console& console) {
  if (!options.skips_check) return run_conversion(options, console);
  RealFileSystem files;
  const ConvertedModel converted = convert(options, files, console);
  console.result(to_json(options, converted), text(options, converted));
  return 0;
}

class Convert final : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add_positional("from", options_.from, "Hugging Face folder, run or checkpoint").is_required = true;
    table.add_positional("to", options_.to, "output folder, new or empty").is_required = true;
    table.add_choice<ModelFormat>(
        "format", options_.format, {{"hf", ModelFormat::hf}, {"checkpoint", ModelFormat::checkpoint}},
        "hf: a Hugging Face folder; checkpoint: a run folder with a checkpoint of step 0");
    optimus::declare(table, options_);
  }
  int run(Console& console) override { return convert_and_check(options_, console); }

 private:
  ConvertOptions options_;
};

class Export final : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add_positional("from", options_.from, "run or checkpoint").is_required = true;
    table.add_choice<ModelFormat>("format", options_.format, {{"hf", ModelFormat::hf}},
                                  "hf: a Hugging Face folder");
    table.add("out", options_.to, "DIR", "output folder, new or empty").is_required = true;
    optimus::declare(table, options_);
  }
  int run(Console& console) override { return convert_and_check(options_, console); }

 private:
  ConvertOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_convert_command() { return std::make_unique<Convert>(); }
std::unique_ptr<Command> make_export_command() { return std::make_unique<Export>(); }

}  // namespace optimus
