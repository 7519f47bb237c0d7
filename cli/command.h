// A subcommand of `optimus`, which declares its options and then runs. Each subcommand has its own file.
// commands.cpp contains the table of all subcommands.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/options.h"
#include "cli/console.h"

namespace optimus {

class Command {
 public:
  virtual ~Command() = default;
  virtual void declare(OptionTable& table) = 0;
  // Called once, after the options are filled in. Returns the exit code. Throws UserError.
  virtual int run(Console& console) = 0;
};

struct CommandEntry {
  std::string name;  // for example "profile" or "data prepare"
  std::string summary;
  std::unique_ptr<Command> (*make)();
};

// Returns the table of subcommands, in the order of the help text.
std::span<const CommandEntry> commands();

std::unique_ptr<Command> make_profile_command();
std::unique_ptr<Command> make_data_prepare_command();
std::unique_ptr<Command> make_data_inspect_command();
std::unique_ptr<Command> make_explain_command();
std::unique_ptr<Command> make_plan_command();
std::unique_ptr<Command> make_simulate_command();
std::unique_ptr<Command> make_learn_command();
std::unique_ptr<Command> make_train_command();
std::unique_ptr<Command> make_checkpoint_list_command();
std::unique_ptr<Command> make_checkpoint_verify_command();
std::unique_ptr<Command> make_checkpoint_show_command();
std::unique_ptr<Command> make_checkpoint_clear_command();
std::unique_ptr<Command> make_eval_command();
std::unique_ptr<Command> make_generate_command();
std::unique_ptr<Command> make_convert_command();
std::unique_ptr<Command> make_export_command();
std::unique_ptr<Command> make_launch_command();
std::unique_ptr<Command> make_logs_command();
std::unique_ptr<Command> make_status_command();
std::unique_ptr<Command> make_switch_command();
std::unique_ptr<Command> make_drain_command();
std::unique_ptr<Command> make_join_command();
std::unique_ptr<Command> make_decisions_command();
std::unique_ptr<Command> make_replay_command();
std::unique_ptr<Command> make_report_command();
std::unique_ptr<Command> make_doctor_command();

}  // namespace optimus
