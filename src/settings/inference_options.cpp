// See inference_options.h.
#include "settings/inference_options.h"

#include "plan/plan.h"

namespace optimus {
namespace {

constexpr const char* kModelHelp = "a Hugging Face folder, a run or a checkpoint";
constexpr const char* kTokenizerHelp = "how text is tokenized (default: the model folder's, else bytes)";

}  // namespace

void declare(OptionTable& table, ComputeOptions& o) {
  table.add_word("precision", o.precision, precision_words(),
                 "of weights and activations (default: fp32 on processors, bf16 on GPUs)");
  table.add("device", o.device, "cpu|cuda", "where to compute (default: a GPU where there is one)");
  table.add("threads", o.threads, "N", "threads of a processor device (default: all cores)");
}

void declare(OptionTable& table, EvalOptions& o) {
  table.add("model", o.model, "M", kModelHelp).is_required = true;
  table.add("data", o.data, "D", "text, jsonl, a folder, or the prefix of token files").is_required = true;
  table.add("tokenizer", o.tokenizer, "bytes|FILE", kTokenizerHelp);
  table.add(
      "seq", o.sequence_length, "N",
      "tokens of a window; the last partial one is left out (default: the model's longest, at most 1024)");
  table.add("batch", o.batch, "B", "windows computed at a time (changes no result beyond rounding)");
  declare(table, o.compute);
  table.add("devices", o.layout.devices, "N",
            "devices that share the work: GPUs, else threads of this machine (default: one)");
  table.add("plan", o.layout.plan, "FILE", "share it as this plan does");
  table.add("tp", o.layout.tp, "N", "tensor parallel devices");
  table.add("pp", o.layout.pp, "N", "stages of a pipeline");
  table.add("cp", o.layout.cp, "N", "context parallel devices: parts of a window");
  table.add("dp", o.layout.dp, "N", "data parallel replicas (default: the rest of the devices)");
  table.add("zero", o.layout.zero, "N", "3: the replicas share the weights");
}

void declare(OptionTable& table, TextOptions& o) {
  table.add("model", o.model, "M", kModelHelp).is_required = true;
  table.add("tokenizer", o.tokenizer, "bytes|FILE", kTokenizerHelp);
  table.add("prompt", o.prompt, "TEXT", "what the text begins with");
  table.add("prompt-ids", o.prompt_ids, "1,2,3", "the same as token ids");
  table.add("tokens", o.num_tokens, "N", "new tokens");
  table.add("greedy", o.is_greedy, "always the likeliest token");
  table.add("temperature", o.temperature, "T", "how much chance plays a part; 0: none (default: 0.8)");
  table.add("top-p", o.top_p, "P", "choose among the likeliest tokens that together have this chance");
  table.add("seed", o.seed, "N", "of the choices");
  table.add("stop", o.stops, "end early at a token that ends a text");
  declare(table, o.compute);
}

}  // namespace optimus
