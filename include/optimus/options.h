// The options of a training run. An option that is omitted gets a default that depends on the model, the data
// and the hardware. `optimus train --help` lists all options, and settings.toml in the run folder records
// which values were used and where they came from.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "optimus/export.h"

namespace optimus {
inline namespace v0 {

// Plain data. Members have the same names as command-line options and the keys of settings files.
struct TrainOptions {
  std::string model;  // a preset ("gpt2", "llama3-8b"), a Hugging Face folder, a config.json, or a run
  // A text or JSONL file, a folder, or a token-file prefix. A blend is given as weight, name, weight, name, …
  std::vector<std::string> data;
  std::string tokenizer;  // "bytes" or a tokenizer.json
  std::string run;        // the run folder; if empty, runs/<model>-<date>

  std::optional<std::int64_t> steps;
  std::optional<std::int64_t> batch;       // sequences per step, over all devices
  std::optional<std::int64_t> microbatch;  // sequences in one micro-batch
  std::optional<std::int64_t> seq;         // tokens per sequence
  std::optional<double> learning_rate;
  std::optional<std::int64_t> seed;
  std::string precision;  // "fp64", "fp32", "bf16", "fp16", "fp8"

  std::optional<std::int64_t> devices;  // number of workers
  std::string device;                   // "cpu", "cuda"
  std::string plan;                     // a plan file; if empty, the planner chooses the plan
  std::string policy;                   // the policy that decides on plan changes, for example "rule"
  bool is_static = false;               // the plan changes only on request

  std::string resume;  // a run folder; the run resumes from its newest valid checkpoint

  // Other options by key, for example {"layers", "4"}, {"zero", "1"}, {"save-every", "10m"}. An empty value
  // turns on an option that takes no value.
  std::map<std::string, std::string> more;
};

}  // namespace v0
}  // namespace optimus
