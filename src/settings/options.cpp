// Implements options.h: the flags of train, with their help texts.
#include "settings/options.h"

#include "plan/plan.h"
#include "policy/decide.h"

namespace optimus {

bool has_layout(const Constraints& c) {
  return c.tp || c.pp || c.dp || c.cp || c.ep || c.zero || c.chunks || !c.schedule.empty() || c.max_memory ||
         c.offload || c.no_zero3;
}

namespace {

// One function for each section of TrainOptions, in the order of the struct.
void declare_model_and_data(OptionTable& table, TrainOptions& o) {
  declare(table, o.model);
  table.add("from-scratch", o.from_scratch,
            "initialize weights randomly even if the model's folder contains weights");
  table
      .add("data", o.data, "D",
           "text file, jsonl file, folder or token-file prefix; or a blend: 0.7 A 0.3 B (default: the C++ "
           "headers of this machine)")
      .values_per_occurrence = 0;
  table.add("tokenizer", o.tokenizer, "bytes|FILE",
            "tokenizer for the text (default: the tokenizer in the model's folder, otherwise bytes)");
  table.add("run", o.run, "DIR", "run folder (default: runs/<model>-<date>)");
}

void declare_schedule(OptionTable& table, TrainOptions& o) {
  table.add("steps", o.steps, "N", "number of training steps");
  table.add("batch", o.batch, "B", "global batch size in sequences, over all devices");
  table.add("microbatch", o.microbatch, "b", "micro-batch size in sequences");
  table.add("seq", o.sequence_length, "S", "sequence length in tokens");
  table.add(
      "batch-ramp", o.batch_ramp, "FROM:STEPS",
      "grow the batch from FROM sequences to --batch at step STEPS, doubling at equal intervals; FROM:noise "
      "doubles it as the gradient noise scale grows; FROM,NEXT@STEP,… sets the sizes and steps");
  table.add("seq-ramp", o.sequence_ramp, "FROM:STEPS",
            "grow the sequence length from FROM tokens to --seq at step STEPS, like --batch-ramp");
  table.add("lr", o.learning_rate, "X",
            "peak learning rate (default: depends on the model size; a tenth of that for pretrained models)");
  table.add("warmup", o.warmup, "N",
            "number of learning rate warm-up steps (default: a tenth of all steps, at most 2000)");
  table.add_choice<LearningRateShape>("lr-schedule", o.shape,
                                      {{"cosine", LearningRateShape::cosine},
                                       {"linear", LearningRateShape::linear},
                                       {"wsd", LearningRateShape::wsd},
                                       {"constant", LearningRateShape::constant}},
                                      "learning rate decay after the warm-up");
  table.add("min-lr", o.min_learning_rate_fraction, "F", "final learning rate, as a fraction of --lr");
  table.add("weight-decay", o.weight_decay, "X", "AdamW weight decay of matrices and embeddings");
  table.add("beta1", o.beta1, "X", "AdamW beta1");
  table.add("beta2", o.beta2, "X", "AdamW beta2");
  table.add("epsilon", o.epsilon, "X", "AdamW epsilon");
  table.add("clip", o.clip, "X", "maximum gradient norm; 0 disables clipping");
  table.add("seed", o.seed, "N", "random seed for initialization, sample order and dropout");
}

void declare_numerics(OptionTable& table, TrainOptions& o) {
  table.add_word("precision", o.precision, precision_words(),
                 "precision of weights and activations (default: fp32 on CPU, bf16 on GPU)");
  table.add_word("recompute", o.recompute, recompute_words(),
                 "activations to recompute in the backward pass");
  table.add("recompute-layers", o.recompute_layers, "N",
            "number of layers per recomputed segment with --recompute full (default: the number that needs "
            "the least memory)");
  table.add("dropout", o.dropout, "P", "dropout rate of all layers (default: the model's dropout rate)");
  declare(table, o.samples);
}

void declare_devices(OptionTable& table, TrainOptions& o) {
  table.add("devices", o.devices, "N",
            "number of workers, each with one process and one device (default: the number of GPUs, or of CPU "
            "cores if there are no GPUs)");
  table.add("timeout", o.timeout, "T", "time to wait for a worker that does not respond").old_names = {
      "patience"};
  table.add("start-timeout", o.start_timeout, "T", "time to wait for all ranks started by a launcher to join")
      .old_names = {"start-patience"};
  table.add("notice", o.notice, "FILE|URL",
            "preemption notice: a file that appears, or an http URL that returns a notice, before this "
            "machine is preempted; its workers then leave the run (overridden by $OPTIMUS_NOTICE)");
  table
      .add("store", o.store, "etcd://HOST:PORT",
           "rendezvous store for the workers (default: a store hosted by the first worker)")
      .is_saved = false;
  table
      .add("token-file", o.token_file, "FILE",
           "file with the run's token, with mode 600 (default: $OPTIMUS_TOKEN); required for runs on several "
           "hosts")
      .is_saved = false;
  table.add("device", o.device, "cpu|cuda",
            "device type to compute on (default: cuda if a GPU is available)");
  table.add("threads", o.threads, "N",
            "number of CPU threads per worker (default: all cores, shared evenly)");
}

void declare_plan(OptionTable& table, TrainOptions& o) {
  table.add("plan", o.plan, "FILE", "plan to use");
  table.add("switch-at", o.switch_at, "STEP:PLAN,…", "switch to each of these plans after the given step");
  table.add_choice<PrecopyMode>(
      "precopy", o.precopy,
      {{"auto", PrecopyMode::automatic}, {"always", PrecopyMode::always}, {"never", PrecopyMode::never}},
      "whether to send state before the pause of a plan switch, while training continues, to shorten the "
      "pause");
  table
      .add_choice<SampleOrder>("sample-assignment", o.sample_order,
                               {{"by-cost", SampleOrder::by_cost}, {"in-order", SampleOrder::in_order}},
                               "how to assign the samples of a step to replicas: balanced by cost if "
                               "document lengths differ, or in order")
      .old_names = {"deal"};
  declare_layout(table, o.layout);
  for (const char* planned : {"ep", "offload"})
    table.find(planned)->help += " (planning and simulation only; train rejects it)";
  declare(table, o.failures);
  table.add("history", o.history, "FILE|here|none",
            "history of past runs, which corrects the planner's predictions and to which this run is added; "
            "here: the history file of this machine");
}

void declare_decisions(OptionTable& table, TrainOptions& o) {
  table.add("static", o.is_static, "disable automatic plan changes and recovery; a lost worker ends the run");
  table.add_word(
      "policy", o.policy, policy_words(),
      "policy that decides when to change the plan (default: 'rule', or 'never' if workers share cores)");
  table.add_choice<Redundancy>("redundancy", o.redundancy,
                               {{"keep", Redundancy::keep}, {"auto", Redundancy::automatic}},
                               "keep: always keep the plan's redundant state copies; auto: let the policy "
                               "add or drop copies depending on the failure rate");
  table.add(
      "learned", o.learned, "FILE",
      "policy network for --policy learned, written by `optimus learn` (default: the built-in network)");
  table
      .add("conditions", o.conditions, "FILE",
           "scripted conditions for --policy oracle: a timeline of machine conditions, in seconds from the "
           "first step")
      .old_names = {"foretold"};
}

void declare_checkpoints(OptionTable& table, TrainOptions& o) {
  table.add("resume", o.resume, "RUN", "resume the run in this folder from its last checkpoint").is_saved =
      false;
  table.add("save-every", o.save_every, "N|10m",
            "save a checkpoint every N steps or at this time interval; 0: only at the end");
  table.add("keep-last", o.keep_last, "N", "number of checkpoints to keep; 0: all");
  table.add("keep-every", o.keep_every, "N", "also keep the checkpoints of every N-th step; 0: none");
  table.add("memory-every", o.memory_every, "N",
            "also save a checkpoint in host memory every N steps, for recovery if processes fail but the "
            "host survives; 0: never");
  table.add("memory-folder", o.memory_folder, "DIR",
            "folder for in-memory checkpoints, on an in-memory file system");
  table
      .add("profile", o.profile, "FILE",
           "write a Perfetto trace of a few steps on all ranks, and compare it with the predicted times")
      .is_saved = false;
}

void declare_evaluation(OptionTable& table, TrainOptions& o) {
  table.add("eval-every", o.eval_every, "N",
            "evaluate on the validation data every N steps; 0: only at the end");
  table.add("validation", o.validation, "F", "fraction of the data held out for validation");
  table.add("sample", o.sample_tokens, "N", "number of tokens to generate as a sample at the end; 0: none");
  table.add_choice<ExportFormat>("export", o.export_format,
                                 {{"none", ExportFormat::none}, {"hf", ExportFormat::hf}},
                                 "format in which the trained model is written to RUN/export");
}

}  // namespace

void declare(OptionTable& table, TrainOptions& options) {
  declare_model_and_data(table, options);
  declare_schedule(table, options);
  declare_numerics(table, options);
  declare_devices(table, options);
  declare_plan(table, options);
  declare_decisions(table, options);
  declare_checkpoints(table, options);
  declare_evaluation(table, options);
}

}  // namespace optimus
