// optimus generate: generates text from a model. Implemented in `optimus-engine`, which links libtorch. See
// cli/training.h.
#include "cli/command.h"
#include "cli/training.h"

namespace optimus {
namespace {

class Generate final : public Command {
 public:
  void declare(OptionTable& table) override { optimus::declare(table, options_); }
  int run(Console& console) override { return run_generation(options_, console); }

 private:
  TextOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_generate_command() { return std::make_unique<Generate>(); }

}  // namespace optimus
