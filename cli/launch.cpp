// optimus launch: runs the same command on several hosts over ssh.
#include <filesystem>

#include "base/text.h"
#include "cli/command.h"
#include "launch/launch_hosts.h"
#include "rundir/worker_protocol.h"

namespace optimus {
namespace {

class Launch final : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add("hosts", options_.hosts, "A,B,C", "host names for ssh; the first host runs rank 0");
    table.add("per-host", options_.per_host, "N", "number of ranks on each host");
    table.add("ssh", options_.ssh, "CMD", "remote shell program, called with a host name and a command");
    table.add("master", options_.master, "HOST",
              "address at which the other hosts reach the first host (default: its name in --hosts)");
    table.add("port", options_.port, "P",
              "port of the run's store on the first host (default: a port from 15000 to 29999)");
    table.add("token-file", options_.token_file, "FILE",
              "file with mode 600 that contains the run's token (default: $OPTIMUS_TOKEN if set, otherwise a "
              "new token)");
    table.add("program", options_.program, "FILE",
              "path of optimus on all hosts (default: its path on this host)");
    table.add("here", is_here_,
              "internal: start this host's ranks as optimus launch specifies on standard input");
    table.add_positional("command", options_.command, "command to run on every rank: train …");
  }

  int run(Console& console) override {
    if (is_here_) return launch_here(console.stop_token());
    if (options_.hosts.empty())
      throw UsageError("--hosts is missing; usage: optimus launch --hosts a,b -- train …");
    if (options_.command.empty() || options_.command[0] != "train")
      throw UsageError("the command is missing; usage: optimus launch --hosts a,b -- train …");
    if (options_.per_host < 1) throw UsageError("--per-host: expected at least 1, got {}", options_.per_host);
    if (options_.port < 0 || options_.port > 65535)
      throw UsageError("--port: expected 1 to 65535, got {}", options_.port);
    if (options_.program.empty()) options_.program = std::filesystem::read_symlink("/proc/self/exe").string();
    return launch_on_hosts(options_, process_environment(), console.stop_token());
  }

 private:
  LaunchOptions options_;
  bool is_here_ = false;
};

}  // namespace

std::unique_ptr<Command> make_launch_command() { return std::make_unique<Launch>(); }

}  // namespace optimus
