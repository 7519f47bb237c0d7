// See options.h.
#include "settings/options.h"

#include "adapt/decide.h"
#include "plan/plan.h"

namespace optimus {

bool has_layout(const Constraints& c) {
  return c.tp || c.pp || c.dp || c.cp || c.ep || c.zero || c.chunks || !c.schedule.empty() || c.max_memory ||
         c.offload || c.no_zero3;
}

void declare(OptionTable& table, TrainOptions& o) {
  declare(table, o.model);
  table.add("from-scratch", o.from_scratch, "start from random weights though the model's folder has some");
  table
      .add("data", o.data, "D",
           "text, jsonl, a folder or a token-file prefix; or a blend: 0.7 A 0.3 B (default: this machine's "
           "C++ headers)")
      .list_length = 0;
  table.add("tokenizer", o.tokenizer, "bytes|FILE",
            "how text is tokenized (default: the model folder's, else bytes)");
  table.add("run", o.run, "DIR", "the run's folder (default: runs/<model>-<date>)");
  table.add("steps", o.steps, "N", "training steps");
  table.add("batch", o.batch, "B", "sequences a step, over all devices");
  table.add("microbatch", o.microbatch, "b", "sequences computed at a time");
  table.add("seq", o.sequence_length, "S", "tokens of a sequence");
  table.add("batch-ramp", o.batch_ramp, "FROM:STEPS",
            "begin with batches of FROM, which double in equal stretches and are --batch behind step STEPS; "
            "FROM:noise doubles them as the gradient noise scale grows, FROM,NEXT@STEP,… at these steps");
  table.add("seq-ramp", o.sequence_ramp, "FROM:STEPS",
            "begin with the first FROM tokens of every sequence; in the same way they become --seq");
  table.add(
      "lr", o.learning_rate, "X",
      "the highest learning rate (default: by the model's size; a tenth of that for a model with weights)");
  table.add("warmup", o.warmup, "N",
            "steps in which the learning rate grows (default: a tenth of all, at most 2000)");
  table.add_choice<LearningRateShape>("lr-schedule", o.shape,
                                      {{"cosine", LearningRateShape::cosine},
                                       {"linear", LearningRateShape::linear},
                                       {"wsd", LearningRateShape::wsd},
                                       {"constant", LearningRateShape::constant}},
                                      "how the learning rate falls after its warm-up");
  table.add("min-lr", o.least_learning_rate, "F", "where it ends, as a fraction of --lr");
  table.add("weight-decay", o.weight_decay, "X", "AdamW's decay of matrices and embeddings");
  table.add("beta1", o.beta1, "X", "AdamW's first moment");
  table.add("beta2", o.beta2, "X", "AdamW's second moment");
  table.add("epsilon", o.epsilon, "X", "AdamW's epsilon");
  table.add("clip", o.clip, "X", "the largest gradient norm; 0: any");
  table.add("seed", o.seed, "N", "of initialisation, sample order and dropout");
  table.add_word("precision", o.precision, precision_words(),
                 "of weights and activations (default: fp32 on processors, bf16 on GPUs)");
  table.add_word("recompute", o.recompute, recompute_words(),
                 "which activations are computed again in the backward");
  table.add("recompute-layers", o.recompute_layers, "N",
            "with full: layers that keep one input together (default: what needs least memory)");
  table.add("dropout", o.dropout, "P", "dropout rate everywhere (default: the model's)");
  declare(table, o.samples);
  table.add(
      "devices", o.devices, "N",
      "workers to train with, each a process with a device of its own (default: all GPUs, else as many as "
      "there are cores)");
  table.add("patience", o.patience, "T", "how long a worker that does not answer is waited for");
  table.add("start-patience", o.start_patience, "T",
            "how long ranks that their launcher has yet to bring are waited for");
  table.add(
      "notice", o.notice, "FILE|URL",
      "a file that appears, or an http URL that answers, when this machine will be taken: its workers then "
      "leave; $OPTIMUS_NOTICE says it for one process");
  table
      .add("store", o.store, "etcd://HOST:PORT",
           "where workers find each other (default: a store that the first of them hosts)")
      .is_saved = false;
  table
      .add("token-file", o.token_file, "FILE",
           "the run's token, in a file of mode 600; else $OPTIMUS_TOKEN. Runs over several hosts need one")
      .is_saved = false;
  table.add("device", o.device, "cpu|cuda", "where to compute (default: a GPU where there is one)");
  table.add("threads", o.threads, "N",
            "threads of a worker on a processor (default: all cores, shared evenly)");
  table.add("plan", o.plan, "FILE", "run this plan");
  table.add("switch-at", o.switch_at, "STEP:PLAN,…", "go on with these plans, each from behind its step");
  table.add_choice<WhenEarly>(
      "precopy", o.precopy,
      {{"auto", WhenEarly::automatic}, {"always", WhenEarly::always}, {"never", WhenEarly::never}},
      "whether state is sent early, before training stands still for another plan");
  table.add_choice<Dealing>("deal", o.dealing,
                            {{"by-cost", Dealing::by_cost}, {"in-order", Dealing::in_order}},
                            "which worker computes which samples of a step: so that all have as much to do "
                            "where documents differ in "
                            "length, or as they come");
  declare_layout(table, o.layout);
  for (const char* planned : {"ep", "offload"})
    table.find(planned)->help += " (planned and simulated only: a run refuses it)";
  declare(table, o.failures);
  table.add(
      "history", o.history, "FILE|here|none",
      "what past runs took, of what was predicted: corrects what plans are chosen by, and this run adds "
      "its own; here: this machine's file");
  table.add("static", o.is_static, "no decisions of its own while it runs");
  table.add_word("policy", o.policy, policy_words(),
                 "who decides about changes of plan (default: rule; never, where workers share cores)");
  table.add_choice<Redundancy>(
      "redundancy", o.redundancy, {{"keep", Redundancy::keep}, {"auto", Redundancy::automatic}},
      "whether state that is held twice stays so while the run goes on; auto: --policy takes a second copy "
      "up, or gives it up, by how often devices are lost");
  table.add("learned", o.learned, "FILE",
            "for --policy learned: what `optimus learn` has written (default: the one of this program)");
  table.add(
      "foretold", o.foretold, "FILE",
      "for --policy oracle: what will happen to the machines, a time line of conditions in seconds from "
      "the first step");
  table.add("resume", o.resume, "RUN", "go on with this run from its last checkpoint, in its folder")
      .is_saved = false;
  table.add("save-every", o.save_every, "N|10m",
            "save a checkpoint every N steps or so often; 0: only at the end");
  table.add("keep-last", o.keep_last, "N", "checkpoints to keep; 0: all");
  table.add("keep-every", o.keep_every, "N", "keep those of every N-th step besides; 0: none");
  table.add("memory-every", o.memory_every, "N",
            "besides, keep the newest state in the host's memory every N steps, for when processes die and "
            "the host "
            "lives; 0: never");
  table.add("memory-folder", o.memory_folder, "DIR", "where that is: a file system in memory");
  table
      .add("profile", o.profile, "FILE",
           "write every instruction of a few steps on every rank in time, for Perfetto, and compare with the "
           "prediction")
      .is_saved = false;
  table.add("eval-every", o.eval_every, "N", "validation loss every N steps (0: at the end only)");
  table.add("validation", o.validation, "F", "fraction of the data that is held out for it");
  table.add("sample", o.sample_tokens, "N", "tokens of text to generate at the end; 0: none");
  table.add_choice<ExportFormat>("export", o.export_format,
                                 {{"none", ExportFormat::none}, {"hf", ExportFormat::hf}},
                                 "write the trained model as a Hugging Face folder, RUN/export");
}

}  // namespace optimus
