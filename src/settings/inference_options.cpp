// Implements inference_options.h: the flags of eval and generate, with their help texts.
#include "settings/inference_options.h"

#include "plan/plan.h"

namespace optimus {
namespace {

constexpr const char* kModelHelp = "Hugging Face folder, run or checkpoint";
constexpr const char* kTokenizerHelp =
    "tokenizer for the text (default: the tokenizer in the model's folder, otherwise bytes)";

}  // namespace

void declare(OptionTable& table, ComputeOptions& o) {
  table.add_word("precision", o.precision, precision_words(),
                 "precision of weights and activations (default: fp32 on CPU, bf16 on GPU)");
  table.add("device", o.device, "cpu|cuda",
            "device type to compute on (default: cuda if a GPU is available)");
  table.add("threads", o.threads, "N", "number of CPU threads (default: all cores)");
}

void declare(OptionTable& table, EvalOptions& o) {
  table.add("model", o.model, "M", kModelHelp).is_required = true;
  table.add("data", o.data, "D", "text file, jsonl file, folder, or prefix of token files").is_required =
      true;
  table.add("tokenizer", o.tokenizer, "bytes|FILE", kTokenizerHelp);
  table.add("seq", o.sequence_length, "N",
            "number of tokens per window; the last partial window is dropped (default: the model's maximum, "
            "at most 1024)");
  table.add("batch", o.batch, "B", "number of windows computed at a time (changes results only by rounding)");
  declare(table, o.compute);
  table.add("devices", o.layout.devices, "N",
            "number of devices to use: GPUs, or threads if there are no GPUs (default: 1)");
  table.add("plan", o.layout.plan, "FILE", "plan file whose layout is used");
  table.add("tp", o.layout.tp, "N", "tensor-parallel size");
  table.add("pp", o.layout.pp, "N", "number of pipeline stages");
  table.add("cp", o.layout.cp, "N", "context-parallel size");
  table.add("dp", o.layout.dp, "N", "number of data-parallel replicas (default: the remaining devices)");
  table.add("zero", o.layout.zero, "N", "ZeRO stage; 3 shards the weights across replicas");
}

void declare(OptionTable& table, TextOptions& o) {
  table.add("model", o.model, "M", kModelHelp).is_required = true;
  table.add("tokenizer", o.tokenizer, "bytes|FILE", kTokenizerHelp);
  table.add("prompt", o.prompt, "TEXT", "text to continue");
  table.add("prompt-ids", o.prompt_ids, "1,2,3", "prompt as comma-separated token ids, instead of --prompt");
  table.add("tokens", o.num_tokens, "N", "number of tokens to generate");
  table.add("greedy", o.is_greedy, "always pick the most likely token");
  table.add("temperature", o.temperature, "T", "sampling temperature; 0 is greedy (default: 0.8)");
  table.add("top-p", o.top_p, "P", "sample from the smallest set of tokens with this total probability");
  table.add("seed", o.seed, "N", "random seed for sampling");
  table.add("stop", o.stops, "stop at an end-of-text token");
  declare(table, o.compute);
}

}  // namespace optimus
