// optimus plan --diff A B: what changes between two plans; --import FILE: the plan of another trainer's launch.
#include "cli/command.h"
#include "cli/plan_export.h"
#include "plan/describe.h"
#include "plan/plan_json.h"

namespace optimus {
namespace {

class PlanCommand final : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add("diff", diff_, "A B", "say in words what changes from plan A to plan B").list_length = 2;
    optimus::declare(table, model_);
    table.add("batch", batch_, "B", "sequences a step, over all devices");
    table.add("seq", sequence_length_, "S", "tokens of a sequence");
    optimus::declare(table, import_);
    optimus::declare(table, export_);
  }

  int run(Console& console) override {
    if (!import_.file.empty()) return show_import(console);
    if (diff_.size() != 2) throw UsageError("--diff takes two plan files, {} given", diff_.size());
    const Plan a = read_plan(diff_[0]), b = read_plan(diff_[1]);
    const std::vector<std::string> changes = difference(a, b);
    std::string shown;
    for (const std::string& change : changes) shown += change + "\n";
    console.result({{"from", plan_hash(a)}, {"to", plan_hash(b)}, {"changes", changes}},
                   shown.empty() ? "the plans are equal\n" : shown);
    return 0;
  }

 private:
  int show_import(Console& console) {
    const ImportedPlan imported = import_asked(import_, model_, batch_, sequence_length_);
    OrderedJson json = imported_json(imported);
    std::string shown = imported_text(imported);
    shown += export_asked(export_, imported.plan, imported.model, json);
    console.result(json, shown);
    return 0;
  }

  std::vector<std::string> diff_;
  ModelOptions model_;
  std::optional<std::int64_t> batch_, sequence_length_;
  PlanImportOptions import_;
  PlanExportOptions export_;
};

}  // namespace

std::unique_ptr<Command> make_plan_command() { return std::make_unique<PlanCommand>(); }

}  // namespace optimus
