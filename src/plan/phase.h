// Phases: a training whose batch, or whose sequences, grow while it runs. What a step learns from depends on its number, and where batches
// grow by the gradient's noise on what was learned before; never on the plan. Each phase has a plan of its own.
//
//   --batch 64 --batch-ramp 8:3000           8 sequences, 16 behind step 1000, 32 behind step 2000, 64 behind step 3000
//   --batch 64 --batch-ramp 8,24@700,64@900  8 sequences, 24 behind step 700, 64 behind step 900
//   --batch 64 --batch-ramp 8:noise          8 sequences, doubled when the gradient noise scale is at least the next batch
//   --seq 1024 --seq-ramp 256:2000           the first 256 tokens of every sequence, 512 behind step 1000, all behind step 2000
//
// Pure. Read next: plan/noise_scale.h, settings/phases.h.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace optimus {

inline constexpr std::int64_t kNotYet = std::numeric_limits<std::int64_t>::max();

// From behind step `after`; kNotYet: that is still to be decided.
struct Phase {
  std::int64_t after = 0, batch = 0, sequence_length = 0;
  bool operator==(const Phase&) const = default;
};
std::string text(const Phase& from, const Phase& to);  // "batch 8 → 16"

bool follows_noise(const std::string& batch_ramp);
// In order, the first from step 0. Empty words: no ramp. Throws UsageError for words that make no ramp, and for ramps that do not grow.
std::vector<Phase> phases_of(const std::string& batch_ramp, std::int64_t batch,
                             const std::string& sequence_ramp, std::int64_t sequence_length);
// With what was decided of those that were not yet.
std::vector<Phase> with_begins(std::vector<Phase> phases, const std::vector<std::int64_t>& begins);
// Of the step behind `done` ones.
const Phase& phase_at(const std::vector<Phase>& phases, std::int64_t done);

// Behind step `done`: behind which step the next phase begins, if it is to begin. `begins` as in with_begins; noise: the scale that was
// measured, in samples.
std::optional<std::int64_t> next_begin(const std::vector<Phase>& phases,
                                       const std::vector<std::int64_t>& begins, std::int64_t done,
                                       std::optional<double> noise);

// The same devices and layers for another batch and length: pipelines keep their shares, micro-batches about their size where their
// number may change. It need not be valid: a pipeline may be left without a sequence.
Plan with_batch(Plan plan, std::int64_t batch, std::int64_t sequence_length);

}  // namespace optimus
