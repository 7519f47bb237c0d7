// Generates text, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/parameters.h"
#include "plan/plan.h"

namespace optimus {

struct GenerateOptions {
  std::int64_t num_tokens = 100;
  double temperature = 0;  // 0 selects the most likely token
  std::int64_t seed = 0;
  double top_p = 1;  // only the most likely tokens with this total probability are sampled
  // Generation stops after any of these tokens. If empty, exactly num_tokens tokens are generated.
  std::vector<std::int64_t> end_tokens{};
  std::function<void(std::int64_t id)> on_token{};  // called for each token as it is generated; may throw
};

// Returns the ids of the tokens generated after `prompt`, which has at least one id. Throws UserError if the
// model is not causal, or if it has too few learned positions for all tokens but the last.
std::vector<std::int64_t> generate(const ModelSpec& model, Precision precision, Parameters& parameters,
                                   at::Device device, const std::vector<std::int64_t>& prompt,
                                   const GenerateOptions& options);

}  // namespace optimus
