// Text from a model, token by token.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/parameters.h"
#include "plan/plan.h"

namespace optimus {

struct GenerateOptions {
  std::int64_t num_tokens = 100;
  double temperature = 0;  // 0: always the likeliest token
  std::int64_t seed = 0;
};

// Exactly num_tokens new ids behind the prompt (at least one id). Causal models only; the whole must fit the model's positions
// where these are learned. Throws UserError.
std::vector<std::int64_t> generate(const ModelSpec& model, Precision precision, Parameters& parameters,
                                   at::Device device, const std::vector<std::int64_t>& prompt,
                                   const GenerateOptions& options);

}  // namespace optimus
