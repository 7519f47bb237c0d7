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

struct RampStep {
  std::int64_t after = 0, value = 0;
};

std::vector<RampStep> steps_of(const std::string& words, std::int64_t whole, const std::string& what) {
  if (words.empty()) return {{0, whole}};
  const Ramp ramp = parse_ramp(words, what);
  if (ramp.from >= whole)
    throw UsageError("{} {}: it begins with {}, which is not less than the {} that it grows to", what, words,
                     ramp.from, whole);
  std::vector<std::int64_t> values;
  for (std::int64_t value = ramp.from; value < whole; value *= 2) values.push_back(value);
  std::vector<RampStep> steps;
  for (std::size_t i = 0; i < values.size(); ++i)
    steps.push_back({ramp.steps * static_cast<std::int64_t>(i) / std::ssize(values), values[i]});
  steps.push_back({ramp.steps, whole});
  return steps;
}

std::int64_t value_at(const std::vector<RampStep>& steps, std::int64_t done) {
  std::int64_t value = steps.front().value;
  for (const RampStep& one : steps)
    if (one.after <= done) value = one.value;
  return value;
}

// `total` in so many parts that differ by one at most.
std::vector<int> even_parts(std::int64_t total, std::int64_t number) {
  std::vector<int> parts;
  for (std::int64_t i = 0; i < number; ++i)
    parts.push_back(static_cast<int>(total / number + (i < total % number ? 1 : 0)));
  return parts;
}

}  // namespace

std::string text(const Phase& from, const Phase& to) {
  std::string words;
  if (from.batch != to.batch) words = fmt::format("batch {} → {}", from.batch, to.batch);
  if (from.sequence_length != to.sequence_length)
    words += fmt::format("{}sequences of {} → {} tokens", words.empty() ? "" : ", ", from.sequence_length,
                         to.sequence_length);
  return words;
}

Ramp parse_ramp(const std::string& words, const std::string& what) {
  const std::vector<std::string> parts = split(words, ':');
  std::vector<std::int64_t> numbers;
  for (const std::string& part : parts) {
    std::int64_t value = 0;
    const auto [end, problem] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (problem == std::errc() && end == part.data() + part.size() && value >= 1 && value <= 1'000'000'000)
      numbers.push_back(value);
  }
  if (parts.size() != 2 || numbers.size() != 2)
    throw UsageError("{}: {} is not FROM:STEPS, as in 8:3000", what, words);
  return {numbers[0], numbers[1]};
}

std::vector<Phase> phases_of(const std::string& batch_ramp, std::int64_t batch,
                             const std::string& sequence_ramp, std::int64_t sequence_length) {
  const std::vector<RampStep> batches = steps_of(batch_ramp, batch, "--batch-ramp"),
                              lengths = steps_of(sequence_ramp, sequence_length, "--seq-ramp");
  std::set<std::int64_t> begins;
  for (const RampStep& one : batches) begins.insert(one.after);
  for (const RampStep& one : lengths) begins.insert(one.after);
  std::vector<Phase> phases;
  for (const std::int64_t after : begins) {
    const Phase phase{after, value_at(batches, after), value_at(lengths, after)};
    const bool is_same = !phases.empty() && phases.back().batch == phase.batch &&
                         phases.back().sequence_length == phase.sequence_length;
    if (!is_same) phases.push_back(phase);
  }
  return phases;
}

const Phase& phase_at(const std::vector<Phase>& phases, std::int64_t done) {
  ensure(!phases.empty() && phases.front().after == 0, "phases begin with step 0");
  std::size_t at = 0;
  while (at + 1 < phases.size() && phases[at + 1].after <= done) ++at;
  return phases[at];
}

Plan with_batch(Plan plan, std::int64_t batch, std::int64_t sequence_length) {
  plan.sequence_length = sequence_length;
  if (plan.batch == batch) return plan;
  std::int64_t left = batch, left_before = plan.batch;
  for (std::size_t p = 0; p < plan.pipelines.size(); ++p) {
    std::vector<int>& sizes = plan.pipelines[p].microbatches;
    const std::int64_t before = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    const std::int64_t others = std::ssize(plan.pipelines) - 1 - static_cast<std::int64_t>(p);
    // Each of the pipelines behind it gets a sequence at least.
    const std::int64_t share =
        std::clamp<std::int64_t>((2 * left * before + left_before) / (2 * left_before),
                                 std::min<std::int64_t>(1, left), std::max<std::int64_t>(1, left - others));
    // Interleaved schedules go round all stages: they keep their number of micro-batches.
    const std::int64_t usual = plan.schedule == Schedule::interleaved
                                   ? std::ssize(sizes)
                                   : (share + sizes.front() - 1) / sizes.front();
    left -= share, left_before = std::max<std::int64_t>(1, left_before - before);
    sizes = even_parts(share, std::clamp<std::int64_t>(usual, 1, share));
  }
  plan.batch = batch;
  return plan;
}

}  // namespace optimus
