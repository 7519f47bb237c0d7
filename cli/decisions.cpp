// optimus decisions RUN: lists the run's decisions on its plan, with their reasons and their predicted and
// measured gains.
#include "cli/command.h"
#include "rundir/run_records.h"

namespace optimus {
namespace {

class Decisions final : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add_positional("run", run_, "run folder").is_required = true;
  }
  int run(Console& console) override {
    check_run(run_);
    OrderedJson list = OrderedJson::array();
    std::string output;
    for (const Decision& decision : read_decisions(run_)) {
      output += text(decision) + "\n";
      list.push_back(to_json(decision));
    }
    console.result(list, output.empty() ? "no decisions\n" : output);
    return 0;
  }

 private:
  Path run_;
};

}  // namespace

std::unique_ptr<Command> make_decisions_command() { return std::make_unique<Decisions>(); }

}  // namespace optimus
