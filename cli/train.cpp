// optimus train: trains a model. Implemented in `optimus-engine`, which links libtorch. See cli/training.h.
#include <fmt/format.h>

#include "cli/command.h"
#include "cli/training.h"
#include "settings/options.h"

namespace optimus {
namespace {

class Train final : public Command {
 public:
  void declare(OptionTable& table) override {
    optimus::declare(table, options_);
    table_ = &table;
  }
  int run(Console& console) override { return run_training(options_, *table_, console); }

 private:
  TrainOptions options_;
  OptionTable* table_ = nullptr;
};

}  // namespace

std::unique_ptr<Command> make_train_command() { return std::make_unique<Train>(); }

}  // namespace optimus
