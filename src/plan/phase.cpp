// See phase.h.
#include "plan/phase.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/options.h"
#include "base/text.h"

namespace optimus {
namespace {

constexpr std::int64_t kMaxRampValue = 1'000'000'000;
// Number of steps between the decision to start a phase and its first step. In this time all ranks receive
// the decision and prepare.
constexpr std::int64_t kAnnouncementSteps = 4;
constexpr std::int64_t kMinPhaseSteps = 20;  // minimum length of a phase

struct RampStep {
  std::int64_t begin_step = 0, value = 0;
};

// The name of a ramp and its final value.
struct RampEnd {
  const char* name;
  std::int64_t final_value = 0;
};

std::optional<std::int64_t> parse_count(const std::string& word) {
  std::int64_t value = 0;
  const char* const end = word.data() + word.size();
  const auto [rest, error] = std::from_chars(word.data(), end, value);
  const bool is_count = error == std::errc() && rest == end && value >= 1 && value <= kMaxRampValue;
  return is_count ? std::optional(value) : std::nullopt;
}

[[noreturn]] void refuse(const RampEnd& end, const std::string& ramp_text) {
  const bool is_batch = end.name == std::string("batch");
  throw UsageError("--{}-ramp: {} is not of the form FROM:STEPS, such as 8:3000{}", end.name, ramp_text,
                   is_batch ? ", FROM:noise, or FROM,NEXT@STEP,… such as 8,16@700" : "");
}

void check_ramp_grows(const RampEnd& end, const std::string& ramp_text, std::int64_t from) {
  if (from >= end.final_value)
    throw UsageError("--{}-ramp {}: expected a first value below the final value {} of --{}, got {}",
                     end.name, ramp_text, end.final_value, end.name, from);
}

std::vector<std::int64_t> doubled(std::int64_t from, std::int64_t final_value) {
  std::vector<std::int64_t> values;
  for (std::int64_t value = from; value < final_value; value *= 2) values.push_back(value);
  values.push_back(final_value);
  return values;
}

// Parses "FROM:STEPS" and "FROM:noise".
std::vector<RampStep> parse_doubling_ramp(const RampEnd& end, const std::string& ramp_text) {
  const std::vector<std::string> parts = split(ramp_text, ':');
  if (parts.size() != 2) refuse(end, ramp_text);
  const bool is_noise = end.name == std::string("batch") && parts[1] == "noise";
  const std::optional<std::int64_t> from = parse_count(parts[0]),
                                    steps = is_noise ? std::optional(kUndecidedStep) : parse_count(parts[1]);
  if (!from || !steps) refuse(end, ramp_text);
  check_ramp_grows(end, ramp_text, *from);
  const std::vector<std::int64_t> values = doubled(*from, end.final_value);
  const std::int64_t num_changes = std::ssize(values) - 1;
  if (*steps < num_changes)
    throw UsageError("--{}-ramp {}: grows {} times, which is more than its {} steps", end.name, ramp_text,
                     num_changes, *steps);
  std::vector<RampStep> result;
  for (std::int64_t i = 0; i <= num_changes; ++i)
    result.push_back({is_noise && i > 0 ? kUndecidedStep
                      : is_noise        ? 0
                                        : *steps * i / num_changes,
                      values[static_cast<std::size_t>(i)]});
  return result;
}

// Parses "FROM,NEXT@STEP,…".
std::vector<RampStep> parse_listed_ramp(const RampEnd& end, const std::string& ramp_text) {
  std::vector<RampStep> result;
  for (const std::string& entry : split(ramp_text, ',')) {
    const std::vector<std::string> parts = split(entry, '@');
    const std::optional<std::int64_t> value = parse_count(parts[0]);
    const std::optional<std::int64_t> after =
        parts.size() == 2 ? parse_count(parts[1]) : std::optional(std::int64_t{0});
    if (!value || !after || parts.size() != (result.empty() ? 1 : 2)) refuse(end, ramp_text);
    if (!result.empty() && (*value <= result.back().value || *after <= result.back().begin_step))
      throw UsageError(
          "--{}-ramp {}: {}: expected a larger value and a later step than in the preceding entry", end.name,
          ramp_text, entry);
    result.push_back({*after, *value});
  }
  check_ramp_grows(end, ramp_text, result.front().value);
  if (result.back().value != end.final_value)
    throw UsageError("--{}-ramp {}: ends with {} instead of the {} of --{}", end.name, ramp_text,
                     result.back().value, end.final_value, end.name);
  return result;
}

std::vector<RampStep> steps_of(const RampEnd& end, const std::string& ramp_text) {
  if (ramp_text.empty()) return {{0, end.final_value}};
  const bool is_list = end.name == std::string("batch") && ramp_text.find(',') != std::string::npos;
  return is_list ? parse_listed_ramp(end, ramp_text) : parse_doubling_ramp(end, ramp_text);
}

std::int64_t value_at(const std::vector<RampStep>& steps, std::int64_t num_done_steps) {
  std::int64_t value = steps.front().value;
  for (const RampStep& ramp_step : steps)
    if (ramp_step.begin_step <= num_done_steps) value = ramp_step.value;
  return value;
}

// Splits `total` into `number` parts whose sizes differ by at most one.
std::vector<int> split_into_even_parts(std::int64_t total, std::int64_t number) {
  std::vector<int> parts;
  for (std::int64_t i = 0; i < number; ++i)
    parts.push_back(static_cast<int>(total / number + (i < total % number ? 1 : 0)));
  return parts;
}

}  // namespace

std::string text(const Phase& from, const Phase& to) {
  std::string description;
  if (from.batch != to.batch) description = fmt::format("batch {} → {}", from.batch, to.batch);
  if (from.sequence_length != to.sequence_length)
    description += fmt::format("{}sequences of {} → {} tokens", description.empty() ? "" : ", ",
                               from.sequence_length, to.sequence_length);
  return description;
}

bool is_noise_ramp(const std::string& batch_ramp) {
  const std::size_t colon = batch_ramp.find(':');
  return colon != std::string::npos && batch_ramp.substr(colon) == ":noise";
}

std::vector<Phase> phases_of(const std::string& batch_ramp, std::int64_t batch,
                             const std::string& sequence_ramp, std::int64_t sequence_length) {
  const std::vector<RampStep> batches = steps_of({"batch", batch}, batch_ramp),
                              lengths = steps_of({"seq", sequence_length}, sequence_ramp);
  if (is_noise_ramp(batch_ramp)) {
    if (!sequence_ramp.empty())
      throw UsageError(
          "--batch-ramp {} and --seq-ramp {}: the noise scale requires a constant sequence length; remove "
          "one of the two flags",
          batch_ramp, sequence_ramp);
    std::vector<Phase> phases;
    for (const RampStep& ramp_step : batches)
      phases.push_back({ramp_step.begin_step, ramp_step.value, sequence_length});
    return phases;
  }
  std::set<std::int64_t> begin_steps;
  for (const RampStep& ramp_step : batches) begin_steps.insert(ramp_step.begin_step);
  for (const RampStep& ramp_step : lengths) begin_steps.insert(ramp_step.begin_step);
  std::vector<Phase> phases;
  for (const std::int64_t after : begin_steps)
    phases.push_back({after, value_at(batches, after), value_at(lengths, after)});
  return phases;
}

std::vector<Phase> with_decided_starts(std::vector<Phase> phases,
                                       const std::vector<std::int64_t>& begin_steps) {
  auto begin = begin_steps.begin();
  for (Phase& phase : phases)
    if (phase.begin_step == kUndecidedStep && begin != begin_steps.end()) phase.begin_step = *begin++;
  return phases;
}

std::optional<std::int64_t> next_phase_start(const std::vector<Phase>& phases,
                                             const std::vector<std::int64_t>& begin_steps,
                                             std::int64_t num_done_steps, std::optional<double> noise) {
  const std::vector<Phase> decided_phases = with_decided_starts(phases, begin_steps);
  const auto next = std::find_if(decided_phases.begin(), decided_phases.end(),
                                 [](const Phase& phase) { return phase.begin_step == kUndecidedStep; });
  if (next == decided_phases.end() || !noise || *noise < static_cast<double>(next->batch))
    return std::nullopt;
  if (num_done_steps < std::prev(next)->begin_step + kMinPhaseSteps) return std::nullopt;
  return num_done_steps + kAnnouncementSteps;
}

const Phase& phase_at(const std::vector<Phase>& phases, std::int64_t num_done_steps) {
  ensure(!phases.empty() && phases.front().begin_step == 0, "the first phase must start at step 0");
  std::size_t at = 0;
  while (at + 1 < phases.size() && phases[at + 1].begin_step <= num_done_steps) ++at;
  return phases[at];
}

Plan with_batch(Plan plan, std::int64_t batch, std::int64_t sequence_length) {
  plan.sequence_length = sequence_length;
  if (plan.batch == batch) return plan;
  std::int64_t remaining = batch, remaining_before = plan.batch;
  for (std::size_t p = 0; p < plan.pipelines.size(); ++p) {
    std::vector<int>& sizes = plan.pipelines[p].microbatches;
    const std::int64_t total_before = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    const std::int64_t others = std::ssize(plan.pipelines) - 1 - static_cast<std::int64_t>(p);
    // Leaves at least one sequence for each of the remaining pipelines.
    const std::int64_t share = std::clamp<std::int64_t>(
        (2 * remaining * total_before + remaining_before) / (2 * remaining_before),
        std::min<std::int64_t>(1, remaining), std::max<std::int64_t>(1, remaining - others));
    // Interleaved schedules run in rounds over all stages, so the number of micro-batches is not changed.
    const std::int64_t num_microbatches = plan.schedule == Schedule::interleaved
                                              ? std::ssize(sizes)
                                              : (share + sizes.front() - 1) / sizes.front();
    remaining -= share, remaining_before = std::max<std::int64_t>(1, remaining_before - total_before);
    sizes = split_into_even_parts(share, std::clamp<std::int64_t>(num_microbatches, 1, share));
  }
  plan.batch = batch;
  return plan;
}

}  // namespace optimus
