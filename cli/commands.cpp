// The table of subcommands.
#include "cli/command.h"

namespace optimus {

std::span<const CommandEntry> commands() {
  static const CommandEntry entries[] = {
      {"train", "train a model on data; without arguments, a small one on this machine's C++ headers",
       make_train_command},
      {"launch", "the same command on several hosts, by ssh: --hosts a,b,c -- train …", make_launch_command},
      {"eval", "how well a model predicts a text: loss and perplexity", make_eval_command},
      {"generate", "text from a model, token by token", make_generate_command},
      {"convert", "a model in another form: Hugging Face folder or checkpoint, type, shards",
       make_convert_command},
      {"export", "a run's or a checkpoint's model as a Hugging Face folder", make_export_command},
      {"profile", "what a model and a data set are: parameters, work, memory; documents, tokens",
       make_profile_command},
      {"data prepare", "turn text, jsonl files and folders into token files", make_data_prepare_command},
      {"data inspect", "what a token file holds", make_data_inspect_command},
      {"explain", "a plan in words and pictures; one device's program; the step as a timeline",
       make_explain_command},
      {"plan", "the best plan for a model on a cluster; compares, imports and exports plans",
       make_plan_command},
      {"checkpoint list", "the checkpoints of a run, and whether they are whole",
       make_checkpoint_list_command},
      {"checkpoint verify", "read every byte of a run's checkpoints and compare with their checksums",
       make_checkpoint_verify_command},
      {"checkpoint show", "what is in a checkpoint: tensors, files, state of the training",
       make_checkpoint_show_command},
      {"checkpoint clear", "remove what a failed run has kept in this machine's memory",
       make_checkpoint_clear_command},
      {"simulate",
       "what a step of a plan takes on a cluster; what policies get done where machines fail (--failures)",
       make_simulate_command},
      {"learn", "train the policy that decides about changes of plan, in simulated runs", make_learn_command},
      {"status", "a run: its plan, its step, its workers and how they are", make_status_command},
      {"switch", "let a running training go on with another plan", make_switch_command},
      {"join", "take part in a training that is under way, as a worker more", make_join_command},
      {"drain", "empty one worker of a running training; the others go on", make_drain_command},
      {"decisions", "what a run has decided about its plan, and what came of it", make_decisions_command},
      {"replay", "what a run has measured under other policies: what they would have done and got",
       make_replay_command},
      {"report", "a run as one page for a browser: loss, speed, plans, decisions", make_report_command},
      {"logs", "what all ranks of a run wrote, in the order of time, around its failure", make_logs_command},
      {"doctor", "what this machine has, what is missing, and the line that fixes it", make_doctor_command},
  };
  return entries;
}

}  // namespace optimus
