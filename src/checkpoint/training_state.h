// The state that a resumed run needs in addition to tensors, plan and settings: state.json in a checkpoint.
// Plain data with conversion to and from JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plan/fp8.h"
#include "plan/noise_scale.h"
#include "plan/plan.h"

namespace optimus {

struct TrainingState {
  std::int64_t step = 0;  // number of completed steps
  std::int64_t num_updates =
      0;  // number of parameter updates, without skipped steps; used for Adam's bias correction
  std::int64_t num_samples = 0;  // number of consumed samples; index of the next one
  std::int64_t seed = 0;
  std::int64_t plan_epoch = 0;
  Precision precision = Precision::fp32;
  struct LossScale {  // only for fp16; managed by the engine
    double value = 256;
    std::int64_t num_good_steps = 0;
    bool operator==(const LossScale&) const = default;
  } loss_scale{};
  Fp8History fp8{};  // of fp8 GEMMs, otherwise empty
  // For batch ramps driven by the gradient noise (plan/phase.h): the measured noise, and the steps after
  // which the phases decided so far begin.
  NoiseScale noise{};
  std::vector<std::int64_t> phase_begins{};
  bool operator==(const TrainingState&) const = default;
};

inline constexpr int kTrainingStateVersion = 1;
inline constexpr std::string_view kTrainingStateFile = "state.json";

// content of the file; numbers read back exactly
std::string training_state_text(const TrainingState& state);
// Throws a UserError if the text is not such a file, has another version, or contains invalid values.
TrainingState parse_training_state(std::string_view text, const std::string& source);

}  // namespace optimus
