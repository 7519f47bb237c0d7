// The settings of one update of the parameters. Plain data.
#pragma once

#include <cstdint>

namespace optimus {

// D and K of Yang et al., "PipeMare". With both set to 0 the delay is not corrected.
struct PipeMareOptions {
  // D: fraction of the old velocity that remains after one delay. 0 disables the correction.
  double decay = 0.135;
  // K: number of updates over which step sizes grow to their full value. 0 disables the warm-up.
  std::int64_t num_warmup_updates = 0;
};

struct UpdateOptions {
  double learning_rate = 0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  double clip = 1;  // maximum gradient norm; 0 disables clipping (required by asynchronous schedules)
  PipeMareOptions pipemare{};
  // Whether Engine::noise records every update. Asynchronous schedules do not support this.
  bool measures_gradient_noise = false;
};

}  // namespace optimus
