// Text generation, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/parameters.h"
#include "plan/plan.h"

namespace optimus {

struct GenerateOptions {
  std::int64_t num_tokens = 100;
  double temperature = 0;  // 0: always the most likely token
  std::int64_t seed = 0;
  double top_p = 1;  // sample from the most likely tokens that together have this probability
  // generation stops after any of these; empty: exactly num_tokens are generated
  std::vector<std::int64_t> end_tokens{};
  std::function<void(std::int64_t id)> on_token{};  // called for each token as it is generated; may throw
};

// Returns the new ids that follow the prompt (at least one id). Causal models only. With learned positions,
// all tokens but the last must fit into the model's positions. Throws UserError.
std::vector<std::int64_t> generate(const ModelSpec& model, Precision precision, Parameters& parameters,
                                   at::Device device, const std::vector<std::int64_t>& prompt,
                                   const GenerateOptions& options);

}  // namespace optimus
