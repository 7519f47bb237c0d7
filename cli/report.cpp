// optimus report RUN --out FILE.html: writes one self-contained page about a run.
#include "base/error.h"
#include "cli/command.h"
#include "report/report_page.h"

namespace optimus {
namespace {

class Report final : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add_positional("run", run_, "run folder").is_required = true;
    table.add("out", out_, "FILE.html", "output file for the HTML page").is_required = true;
  }
  int run(Console& console) override {
    const RunReport report = read_report(run_);
    const std::string page = report_page(report);
    RealFileSystem files;
    value_or_throw(write_atomically(files, out_, page));
    const std::int64_t last = report.steps.empty() ? 0 : report.steps.back().step;
    console.result({{"file", out_.string()},
                    {"bytes", page.size()},
                    {"steps", report.steps.size()},
                    {"decisions", report.decisions.size()},
                    {"profiled_ranks", report.ranks.size()}},
                   fmt::format("{}: {} steps up to {}, {} decisions{}\n", out_.string(), report.steps.size(),
                               last, report.decisions.size(),
                               report.ranks.empty() ? "; no profile (train --profile FILE writes one)" : ""));
    return 0;
  }

 private:
  Path run_, out_;
};

}  // namespace

std::unique_ptr<Command> make_report_command() { return std::make_unique<Report>(); }

}  // namespace optimus
