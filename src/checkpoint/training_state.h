// The state that a resumed run needs in addition to tensors, plan and settings. It is stored in state.json in
// the checkpoint. Plain data with conversion to and from JSON.
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
  // Number of parameter updates, excluding skipped steps. Used for Adam's bias correction.
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
  // Used only for batch ramps that depend on the gradient noise (plan/phase.h): the measured noise, and the
  // step after which each phase that has been decided so far begins.
  NoiseScale noise{};
  std::vector<std::int64_t> phase_begins{};
  bool operator==(const TrainingState&) const = default;
};

inline constexpr int kTrainingStateVersion = 1;
inline constexpr std::string_view kTrainingStateFile = "state.json";

// Returns the content of the file. Numbers are written so that parsing restores them exactly.
std::string training_state_text(const TrainingState& state);
// Throws UserError if `text` has the wrong format, an unsupported version, or invalid values.
TrainingState parse_training_state(std::string_view text, const std::string& source);

}  // namespace optimus
