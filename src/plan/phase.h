// Phases: a training whose batch, or whose sequences, grow while it runs. What a step learns from depends on its number alone, never on
// the plan; each phase has a plan of its own.
//
//   --batch 64 --batch-ramp 8:3000        8 sequences, 16 behind step 1000, 32 behind step 2000, 64 behind step 3000
//   --seq 1024 --seq-ramp 256:2000        the first 256 tokens of every sequence, 512 behind step 1000, all behind step 2000
//
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace optimus {

// From behind step `after`.
struct Phase {
  std::int64_t after = 0, batch = 0, sequence_length = 0;
  bool operator==(const Phase&) const = default;
};
std::string text(const Phase& from, const Phase& to);  // "batch 8 → 16"

// "FROM:STEPS": a value that begins with FROM, doubles in equal stretches, and is whole behind step STEPS.
struct Ramp {
  std::int64_t from = 0, steps = 0;
};
Ramp parse_ramp(const std::string& words, const std::string& what);  // throws UsageError naming `what`

// In order, the first from step 0. Empty words: no ramp. Throws UsageError for a ramp that does not grow.
std::vector<Phase> phases_of(const std::string& batch_ramp, std::int64_t batch,
                             const std::string& sequence_ramp, std::int64_t sequence_length);
// Of the step behind `done` ones.
const Phase& phase_at(const std::vector<Phase>& phases, std::int64_t done);

// The same devices and layers for another batch and length: pipelines keep their shares, micro-batches about their size where their number may change.
Plan with_batch(Plan plan, std::int64_t batch, std::int64_t sequence_length);

}  // namespace optimus
