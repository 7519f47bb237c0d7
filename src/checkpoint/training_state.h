// The state that a resumed run needs in addition to tensors, plan and settings, stored as state.json in a
// checkpoint. Plain data with conversion to and from JSON.
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
  // Number of parameter updates, not counting skipped steps; used for Adam's bias correction.
  std::int64_t num_updates = 0;
  std::int64_t num_samples = 0;  // number of consumed samples; index of the next one
  std::int64_t seed = 0;
  std::int64_t plan_epoch = 0;
  Precision precision = Precision::fp32;
  struct LossScale {  // fp16 only; managed by the engine
    double value = 256;
    std::int64_t num_good_steps = 0;
    bool operator==(const LossScale&) const = default;
  } loss_scale{};
  Fp8History fp8{};  // scaling history of fp8 GEMMs; empty without them
  // Only for batch ramps driven by the gradient noise (plan/phase.h): the measured noise, and for each
  // phase decided so far the step after which it begins.
  NoiseScale noise{};
  std::vector<std::int64_t> phase_begins{};
  bool operator==(const TrainingState&) const = default;
};

inline constexpr int kTrainingStateVersion = 1;
inline constexpr std::string_view kTrainingStateFile = "state.json";

// Returns the content of the file. Numbers are written such that parsing restores them exactly.
std::string training_state_text(const TrainingState& state);
// Throws a UserError if `text` is not such a file, has another version, or contains invalid values.
TrainingState parse_training_state(std::string_view text, const std::string& source);

}  // namespace optimus
