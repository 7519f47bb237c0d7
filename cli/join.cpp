// optimus join RUN: a worker more for a run that is under way.
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
    table.add_positional("run", run_, "a run's folder").is_required = true;
    table.add("device", device_, "cpu|cuda:N", "where it computes; as the run's when it is not said");
    table.add("threads", threads_, "N", "that it computes with on a processor");
  }
  int run(Console& console) override {
    if (threads_ < 1) throw UsageError("--threads: {} is no number of threads", threads_);
    if (!status_of(run_).is_running && !has_store_file(run_))
      throw UserError("{}: no training is running there", run_.string());
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
