// What a run must know to go on besides tensors, plan and settings: state.json in a checkpoint. Plain data, JSON in and out.
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
  std::int64_t step = 0;  // completed
  std::int64_t num_updates =
      0;  // of the parameters, without steps that were skipped; Adam's bias correction counts them
  std::int64_t num_samples = 0;  // consumed; the number of the next one
  std::int64_t seed = 0;
  std::int64_t plan_epoch = 0;
  Precision precision = Precision::fp32;
  struct LossScale {  // fp16 only; the engine's
    double value = 256;
    std::int64_t num_good = 0;
    bool operator==(const LossScale&) const = default;
  } loss_scale{};
  Fp8History fp8{};  // of products in 8 bits, else empty
  // Where batches grow by the gradient's noise (plan/phase.h): what was seen of it, and behind which steps phases begin that are decided.
  NoiseScale noise{};
  std::vector<std::int64_t> phase_begins{};
  bool operator==(const TrainingState&) const = default;
};

inline constexpr int kTrainingStateVersion = 1;
inline constexpr std::string_view kTrainingStateFile = "state.json";

std::string training_state_text(const TrainingState& state);  // the file's content; numbers read back exactly
// Throws UserError for what is no such file, one of another version, and values that cannot be.
TrainingState parse_training_state(std::string_view text, const std::string& source);

}  // namespace optimus
