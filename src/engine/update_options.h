// The settings of one update of the parameters. Plain data.
#pragma once

#include <cstdint>

namespace optimus {

// D and K of Yang et al., "PipeMare". With both set to 0 the delay is not corrected.
struct PipeMareOptions {
  // D: fraction of the old velocity that remains after as many updates as the longest delay; 0 for no
  // correction.
  double decay = 0.135;
  // K: number of updates over which step sizes grow to their full value; 0 for no warm-up.
  std::int64_t num_rescheduled = 0;
};

struct UpdateOptions {
  double learning_rate = 0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  double clip = 1;  // largest gradient norm; 0 for no clipping, which asynchronous schedules require
  PipeMareOptions pipemare{};
  // Whether Engine::noise records every update; ignored by asynchronous schedules.
  bool measures_gradient_noise = false;
};

}  // namespace optimus
