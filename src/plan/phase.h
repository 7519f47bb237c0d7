// Phases of a training run whose batch size or sequence length grows over time. The data of a step depend on
// the index of the step and, if the batch grows with the gradient noise, on the measured noise. They never
// depend on the plan. Each phase has its own plan.
//
//   --batch 64 --batch-ramp 8:3000           8 sequences, 16 after step 1000, 32 after 2000, 64 after 3000
//   --batch 64 --batch-ramp 8,24@700,64@900  8 sequences, 24 after step 700, 64 after 900
//   --batch 64 --batch-ramp 8:noise          8 sequences, doubled when the gradient noise scale is at least
//                                            the next batch
//   --seq 1024 --seq-ramp 256:2000           the first 256 tokens of every sequence, 512 after step 1000, all
//                                            after 2000
//
// Pure functions. Read next: plan/noise_scale.h, settings/phases.h.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace optimus {

inline constexpr std::int64_t kUndecidedStep = std::numeric_limits<std::int64_t>::max();

// A phase starts after `begin_step` steps. The value kUndecidedStep means that the start is not decided yet.
struct Phase {
  std::int64_t begin_step = 0, batch = 0, sequence_length = 0;
  bool operator==(const Phase&) const = default;
};
std::string text(const Phase& from, const Phase& to);  // "batch 8 → 16"

bool is_noise_ramp(const std::string& batch_ramp);
// The phases in order; the first starts at step 0. An empty string means no ramp. Throws UsageError for an
// invalid ramp and for a ramp that does not grow.
std::vector<Phase> phases_of(const std::string& batch_ramp, std::int64_t batch,
                             const std::string& sequence_ramp, std::int64_t sequence_length);
// Replaces each kUndecidedStep, in the order of the phases, with the next step in `begin_steps`, the list of
// starts that have been decided since.
std::vector<Phase> with_decided_starts(std::vector<Phase> phases,
                                       const std::vector<std::int64_t>& begin_steps);
// The phase of the step that follows `num_done_steps` completed steps.
const Phase& phase_at(const std::vector<Phase>& phases, std::int64_t num_done_steps);

// Called after step `num_done_steps`: returns the step after which the next phase starts, or nullopt if it is
// too early to decide. `begin_steps` has the same meaning as in with_decided_starts(). `noise` is the
// measured noise scale in samples.
std::optional<std::int64_t> next_phase_start(const std::vector<Phase>& phases,
                                             const std::vector<std::int64_t>& begin_steps,
                                             std::int64_t num_done_steps, std::optional<double> noise);

// Returns the plan with the same devices and layers but a different batch size and sequence length. Pipelines
// keep their fractions of the batch. Micro-batches keep their approximate size if the schedule permits a
// different number of them. The result may be invalid, because a pipeline can end up without sequences.
Plan with_batch(Plan plan, std::int64_t batch, std::int64_t sequence_length);

}  // namespace optimus
