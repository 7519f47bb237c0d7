// optimus replay RUN --policy P[,P…]: replays the measurements of a run under other policies and reports how
// many steps each policy would have completed.
#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "observe/metrics_read.h"
#include "report/recorded_trial.h"
#include "rundir/run_records.h"

namespace optimus {
namespace {

class ReplayCommand final : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add_positional("run", run_, "run folder").is_required = true;
    table.add("policy", policies_, "P[,P…]",
              fmt::format("policies to replay: {} (default: all)", fmt::join(policy_words(), ", ")));
  }

  int run(Console& console) override {
    check_run(run_);
    const std::vector<Policy> policies = requested_policies();
    const Path metrics = run_ / "metrics.jsonl";
    const auto steps = parse_metrics(read_input_file(metrics), metrics.string());
    if (steps.size() < 2) throw UserError("{}: replay needs at least two steps", metrics.string());
    const RunPlans plans = read_run_plans(run_);
    const RecordedTrial recorded = recorded_trial(
        steps, read_decisions(run_), [&](const std::string& hash) { return name_of(plans, hash); });
    show(console, recorded, policies);
    return 0;
  }

 private:
  std::vector<Policy> requested_policies() const {
    std::vector<Policy> policies;
    for (const std::string& part : policies_.empty() ? policy_words() : split(policies_, ','))
      policies.push_back(parse_policy(std::string(trim(part)), "--policy"));
    return policies;
  }

  static void show(Console& console, const RecordedTrial& recorded, const std::vector<Policy>& policies) {
    const auto num_steps = static_cast<double>(recorded.num_steps);
    OrderedJson list = OrderedJson::array();
    std::string output = fmt::format(
        "the run: {} steps in {}, {} automatic plan changes; {} segments, known plans: "
        "{}\n\n{:<12}{:>14}{:>16}{:>10}{:>12}\n",
        recorded.num_steps, text(Seconds(recorded.seconds)), recorded.num_switches,
        recorded.trial.segments.size(), join(recorded.plans, ", "), "policy", "useful steps", "vs the run",
        "switches", "paused");
    for (const Policy& policy : policies) {
      // With hindsight, the oracle policy uses the best sequence of these plans.
      const TrialOutcome outcome =
          policy.kind == PolicyKind::oracle ? hindsight(recorded.trial) : run_trial(policy, recorded.trial);
      const double gain = outcome.useful_steps / num_steps - 1;
      list.push_back({{"policy", text(policy.kind)},
                      {"useful_steps", outcome.useful_steps},
                      {"steps_of_run", recorded.num_steps},
                      {"gain_over_run", gain},
                      {"switches", outcome.switches},
                      {"seconds_lost", outcome.seconds_lost}});
      output += fmt::format("{:<12}{:>14.1f}{:>16}{:>10}{:>12}\n", text(policy.kind), outcome.useful_steps,
                            fmt::format("{:+.1f} %", 100 * gain), outcome.switches,
                            text(Seconds(outcome.seconds_lost)));
    }
    console.result(list, output);
  }

  Path run_;
  std::string policies_;
};

}  // namespace

std::unique_ptr<Command> make_replay_command() { return std::make_unique<ReplayCommand>(); }

}  // namespace optimus
