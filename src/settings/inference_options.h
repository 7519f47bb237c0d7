// The options of the commands that use a trained model: eval and generate.
#pragma once

#include <optional>
#include <string>

#include "base/options.h"

namespace optimus {

struct ComputeOptions {
  std::string precision;  // if empty, fp32 on CPUs and bf16 on GPUs
  std::string device;     // cpu, cuda, cuda:N; if empty, cuda if a GPU is available, else cpu
  std::int64_t threads = 0;
};
void declare(OptionTable& table, ComputeOptions& options);

// How an evaluation is distributed over devices.
struct EvalLayout {
  std::optional<std::int64_t> devices{}, tp{}, pp{}, cp{}, dp{}, zero{};
  Path plan{};
};

struct EvalOptions {
  std::string model, data, tokenizer;
  std::optional<std::int64_t> sequence_length, batch;  // `batch` is the number of windows per forward pass
  ComputeOptions compute;
  EvalLayout layout;
};
void declare(OptionTable& table, EvalOptions& options);

struct TextOptions {
  std::string model, tokenizer;
  std::optional<std::string> prompt, prompt_ids;
  std::int64_t num_tokens = 100;
  bool is_greedy = false, stops = false;
  std::optional<double> temperature, top_p;
  std::int64_t seed = 1;
  ComputeOptions compute;
};
void declare(OptionTable& table, TextOptions& options);

}  // namespace optimus
