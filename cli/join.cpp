// optimus join RUN: adds a worker to a running training.
#include "base/error.h"
#include "cli/command.h"
#include "cli/training.h"
#include "launch/store_file.h"
#include "report/status.h"

namespace optimus {
namespace {

class Join final : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add_positional("run", run_, "run folder").is_required = true;
    table.add("device", device_, "cpu|cuda:N", "device of the new worker (default: a GPU if there is one)");
    table.add("threads", threads_, "N", "number of CPU threads");
  }
  int run(Console& console) override {
    if (threads_ < 1) throw UsageError("--threads: expected at least 1, got {}", threads_);
    if (!status_of(run_).is_running && !has_store_file(run_))
      throw UserError("{}: no training is running", run_.string());
    return run_joining(run_, device_, threads_, console);
  }

 private:
  Path run_;
  std::string device_;
  int threads_ = 1;
};

}  // namespace

std::unique_ptr<Command> make_join_command() { return std::make_unique<Join>(); }

}  // namespace optimus
