// Text from a model, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/parameters.h"
#include "plan/plan.h"

namespace optimus {

struct GenerateOptions {
  std::int64_t num_tokens = 100;
  double temperature = 0;  // 0: always the likeliest token
  std::int64_t seed = 0;
  double top_p = 1;                        // choose among the likeliest tokens that together have this chance
  std::vector<std::int64_t> end_tokens{};  // one of these is the last token; none: exactly num_tokens come
  std::function<void(std::int64_t id)> on_token{};  // each one as it comes; may throw
};

// The new ids behind the prompt (at least one id). Causal models only; all but the last must have a position where positions
// are learned. Throws UserError.
std::vector<std::int64_t> generate(const ModelSpec& model, Precision precision, Parameters& parameters,
                                   at::Device device, const std::vector<std::int64_t>& prompt,
                                   const GenerateOptions& options);

}  // namespace optimus
