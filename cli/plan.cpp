// optimus plan --diff A B: what changes between two plans.
#include "cli/command.h"
#include "plan/describe.h"
#include "plan/plan_json.h"

namespace optimus {
namespace {

class PlanCommand final : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add("diff", diff_, "A B", "say in words what changes from plan A to plan B").list_length = 2;
  }

  int run(Console& console) override {
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
  std::vector<std::string> diff_;
};

}  // namespace

std::unique_ptr<Command> make_plan_command() { return std::make_unique<PlanCommand>(); }

}  // namespace optimus
