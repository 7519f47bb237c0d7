// The table of subcommands.
#include "cli/command.h"

namespace optimus {

std::span<const CommandEntry> commands() {
  static const CommandEntry entries[] = {
      {"train", "train a model (without arguments: a small model on this machine's C++ headers)",
       make_train_command},
      {"launch", "run a command on several hosts over ssh: --hosts a,b,c -- train …", make_launch_command},
      {"eval", "measure a model's loss and perplexity on a text", make_eval_command},
      {"generate", "generate text from a model", make_generate_command},
      {"convert",
       "convert a model between Hugging Face folders and checkpoints, or change its type and shard size",
       make_convert_command},
      {"export", "export the model of a run or checkpoint as a Hugging Face folder", make_export_command},
      {"profile",
       "describe a model, a data set or this machine: parameters, FLOPs, memory, documents, tokens",
       make_profile_command},
      {"data prepare", "tokenize text files, jsonl files and folders into token files",
       make_data_prepare_command},
      {"data inspect", "describe a token file", make_data_inspect_command},
      {"explain", "describe a plan, print the step program of one device, or draw the step as a timeline",
       make_explain_command},
      {"plan", "find the best plan for a model on a cluster; compare, import and export plans",
       make_plan_command},
      {"checkpoint list", "list the checkpoints of a run", make_checkpoint_list_command},
      {"checkpoint verify", "verify the checksums of all files in a run's checkpoints",
       make_checkpoint_verify_command},
      {"checkpoint show", "describe a checkpoint: tensors, files, training state",
       make_checkpoint_show_command},
      {"checkpoint clear", "remove the state of a failed run from this host's memory",
       make_checkpoint_clear_command},
      {"simulate",
       "predict a plan's step time on a cluster, or replay failures under different policies (--failures)",
       make_simulate_command},
      {"learn", "train the policy that decides on plan changes, in simulated runs", make_learn_command},
      {"status", "show a run's plan, step and workers", make_status_command},
      {"switch", "switch a running training to another plan", make_switch_command},
      {"join", "add a worker to a running training", make_join_command},
      {"drain", "remove one worker from a running training; the other workers continue", make_drain_command},
      {"decisions", "list a run's plan changes with reasons and with predicted and measured gains",
       make_decisions_command},
      {"replay", "replay a run's measurements under other policies", make_replay_command},
      {"report", "write a run's loss, speed, plans and decisions as one HTML page", make_report_command},
      {"logs", "show the log lines of all ranks around a failure, in chronological order", make_logs_command},
      {"doctor", "check this machine for required tools and devices, and show how to fix problems",
       make_doctor_command},
  };
  return entries;
}

}  // namespace optimus
