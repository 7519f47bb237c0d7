// optimus status RUN, optimus switch RUN --plan FILE|auto, optimus drain RUN --device D
#include "report/status.h"

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "reshard/control.h"

namespace optimus {
namespace {

class RunCommand : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add_positional("run", run_, "run folder").is_required = true;
  }

 protected:
  Path run_;
};

// Describes what the loss of any device or host would undo.
std::string loss_text(const std::string& kind, int num_tolerated_losses, const std::string& together) {
  if (num_tolerated_losses == 0)
    return fmt::format(
        "losing a {} would roll the run back to its last checkpoint, because there is no other copy of {}\n",
        kind, kind == "device" ? "its state" : "the state of " + together);
  return fmt::format(
      "any {}{} can be lost without losing steps; losing {} together would roll the run back to its last "
      "checkpoint\n",
      num_tolerated_losses == 1 ? "" : std::to_string(num_tolerated_losses) + " ",
      num_tolerated_losses == 1 ? kind : kind + "s", together);
}

bool is_finished(const RunStatus& status) { return status.steps && status.step >= *status.steps; }

std::string state_text(const RunStatus& status) {
  if (status.is_running) return "running";
  return is_finished(status) ? "ended" : "not running";
}

class Status final : public RunCommand {
 public:
  int run(Console& console) override {
    const RunStatus status = status_of(run_);
    OrderedJson workers = OrderedJson::array();
    std::string output =
        fmt::format("{}: {}, step {}{}, plan {} ({}), epoch {}\n", run_.string(), state_text(status),
                    status.step, status.steps ? fmt::format(" of {}", *status.steps) : "",
                    plan_hash(status.plan).substr(0, 4), short_text(status.plan), status.epoch);
    if (status.loss)
      output += fmt::format("loss {:.4f}, {} tokens/s\n", *status.loss,
                            short_count(status.tokens_per_second.value_or(0)));
    for (const WorkerStatus& entry : status.workers) {
      const WorkerEntry& worker = entry.worker;
      workers.push_back({{"rank", worker.rank},
                         {"pid", worker.pid},
                         {"host", worker.host},
                         {"device", worker.device},
                         {"state", entry.state}});
      output += fmt::format("rank {:<5} process {:<8} {} {:<8} {}\n", worker.rank, worker.pid, worker.host,
                            worker.device, entry.state);
    }
    if (status.is_running)
      output += loss_text("device", status.num_tolerated_losses,
                          fmt::format("{}", fmt::join(status.fatal_devices, " and ")));
    else if (!is_finished(status))
      output +=
          fmt::format("to continue from the newest checkpoint: optimus train --resume {}\n", run_.string());
    if (status.is_running && status.num_tolerated_host_losses)
      output += loss_text("host", *status.num_tolerated_host_losses,
                          fmt::format("{}", fmt::join(status.fatal_hosts, " and ")));
    console.result(
        {{"running", status.is_running},
         {"step", status.step},
         {"steps", status.steps ? OrderedJson(*status.steps) : OrderedJson()},
         {"plan", plan_hash(status.plan)},
         {"epoch", status.epoch},
         {"workers", workers},
         {"can_lose", status.num_tolerated_losses},
         {"lost_with", status.fatal_devices},
         {"can_lose_hosts",
          status.num_tolerated_host_losses ? OrderedJson(*status.num_tolerated_host_losses) : OrderedJson()},
         {"lost_with_hosts", status.fatal_hosts}},
        output);
    return 0;
  }
};

class Switch final : public RunCommand {
 public:
  void declare(OptionTable& table) override {
    RunCommand::declare(table);
    table.add("plan", plan_, "FILE|auto", "plan to switch to; auto: the best plan for the run's devices")
        .is_required = true;
    table.add("timeout", timeout_, "TIME", "how long to wait for a response before the request is cancelled")
        .old_names = {"patience"};
  }
  int run(Console& console) override {
    const RunStatus status = status_of(run_);
    if (!status.is_running) throw UserError("{}: no training is running", run_.string());
    std::optional<Plan> plan;
    if (plan_ != "auto") plan = read_plan(plan_);
    const ControlAnswer answer = value_or_throw(
        send_request(run_, switch_request_json(plan), Deadline::after(timeout_, text(timeout_))));
    if (!answer.is_done) throw UserError("{}", answer.text);
    console.result({{"done", true}, {"text", answer.text}}, answer.text + "\n");
    return 0;
  }

 private:
  std::string plan_;
  Seconds timeout_{600};
};

class Drain final : public RunCommand {
 public:
  void declare(OptionTable& table) override {
    RunCommand::declare(table);
    table.add("device", device_, "D", "worker to remove, given by its rank in optimus status").is_required =
        true;
    table.add("timeout", timeout_, "TIME", "how long to wait for a response before the request is cancelled")
        .old_names = {"patience"};
  }
  int run(Console& console) override {
    const RunStatus status = status_of(run_);
    if (!status.is_running) throw UserError("{}: no training is running", run_.string());
    const ControlAnswer answer = value_or_throw(
        send_request(run_, drain_request_json(device_), Deadline::after(timeout_, text(timeout_))));
    if (!answer.is_done) throw UserError("{}", answer.text);
    console.result({{"done", true}, {"text", answer.text}}, answer.text + "\n");
    return 0;
  }

 private:
  int device_ = 0;
  Seconds timeout_{600};
};

}  // namespace

std::unique_ptr<Command> make_status_command() { return std::make_unique<Status>(); }
std::unique_ptr<Command> make_switch_command() { return std::make_unique<Switch>(); }
std::unique_ptr<Command> make_drain_command() { return std::make_unique<Drain>(); }

}  // namespace optimus
