// optimus logs RUN: prints the log lines of all ranks around the failure, in chronological order.
#include "rundir/logs.h"

#include "base/error.h"
#include "base/time_stamp.h"
#include "cli/command.h"

namespace optimus {
namespace {

class Logs final : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add_positional("run", run_, "run folder").is_required = true;
    table.add("around", window_, "SECONDS",
              "show the log lines within this time of the failure, or the last lines if nothing "
              "failed (0: all lines)");
    table.add("rank", rank_, "R", "show only lines of this rank");
  }
  int run(Console& console) override {
    if (rank_ && (*rank_ < 0 || *rank_ > 1'000'000))
      throw UsageError("--rank: expected 0 to 1,000,000, got {}", *rank_);
    LogQuery query;
    if (window_.value > 0) query.window = window_;
    if (rank_) query.rank = static_cast<int>(*rank_);
    OrderedJson list = OrderedJson::array();
    std::string output;
    for (const LogLine& line : read_logs(run_, query)) {
      const std::string time = time_stamp(WallClock::time_point(std::chrono::microseconds(line.micros)));
      const std::string source = line.rank == kNoRank ? "run" : fmt::format("rank {}", line.rank);
      const Json rank = line.rank == kNoRank ? Json() : Json(line.rank);
      list.push_back({{"time", static_cast<double>(line.micros) / 1e6}, {"rank", rank}, {"text", line.text}});
      output += fmt::format("{}{:<8} {}\n", time, source, line.text);
    }
    console.result({{"lines", list}}, output);
    return 0;
  }

 private:
  Path run_;
  Seconds window_{10};
  std::optional<std::int64_t> rank_;
};

}  // namespace

std::unique_ptr<Command> make_logs_command() { return std::make_unique<Logs>(); }

}  // namespace optimus
