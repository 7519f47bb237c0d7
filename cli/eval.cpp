// optimus eval: evaluates a model on a text. Implemented in `optimus-engine`, which links libtorch. See
// cli/training.h.
#include "cli/command.h"
#include "cli/training.h"

namespace optimus {
namespace {

class Eval final : public Command {
 public:
  void declare(OptionTable& table) override { optimus::declare(table, options_); }
  int run(Console& console) override { return run_evaluation(options_, console); }

 private:
  EvalOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_eval_command() { return std::make_unique<Eval>(); }

}  // namespace optimus
