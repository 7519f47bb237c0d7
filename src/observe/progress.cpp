// Implements progress.h.
#include "observe/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace optimus {
namespace {

constexpr std::size_t kMaxIntervals = 64, kMaxGroups = 8;

// A part of the status line. On a narrow terminal, parts with the smallest weight are omitted first.
struct Part {
  int weight;
  std::string text;
};

std::vector<Part> parts_of(const StepMetrics& metrics, std::int64_t total_steps,
                           std::optional<Seconds> remaining) {
  std::vector<Part> parts;
  const std::string total = total_steps > 0 ? fmt::format("/{}", total_steps) : "";
  parts.push_back({10, fmt::format("step {}{}", metrics.step, total)});
  if (metrics.is_skipped) parts.push_back({9, "skipped"});
  parts.push_back({8, fmt::format("loss {:#.5g}", metrics.loss)});
  if (metrics.validation_loss)
    parts.push_back({5, fmt::format("validation {:#.5g}", *metrics.validation_loss)});
  parts.push_back({4, fmt::format("grad {:#.3g}", metrics.grad_norm)});
  parts.push_back({3, fmt::format("lr {:.2e}", metrics.learning_rate)});
  parts.push_back({6, short_count(metrics.tokens_per_second) + " tokens/s"});
  if (metrics.tflops) parts.push_back({0, fmt::format("{:#.3g} TFLOP/s", *metrics.tflops)});
  if (metrics.mfu) parts.push_back({2, fmt::format("MFU {:.1f} %", *metrics.mfu * 100)});
  if (metrics.memory) parts.push_back({1, text(*metrics.memory)});
  if (remaining) parts.push_back({7, "ETA " + text(*remaining)});
  return parts;
}

}  // namespace

void StatusLineSink::report(const Event& event) {
  if (const auto* warning = std::get_if<Warning>(&event))
    line_.print("warning: " + warning->text);
  else
    show(std::get<Progress>(event));
}

void StatusLineSink::show(const Progress& progress) {
  const Seconds current_time = line_.now();
  double seconds = 0;
  {
    const std::lock_guard lock(mutex_);
    if (activity_ != progress.activity) activity_ = progress.activity, begin_time_ = current_time;
    seconds = std::max((current_time - begin_time_).value, 1e-3);
  }
  if (!line_.is_due()) return;
  const auto amount = [&](double number) {
    return progress.unit == "bytes" ? text(Bytes(static_cast<std::int64_t>(number)))
                                    : short_count(number) + " " + progress.unit;
  };
  const auto num_done = static_cast<double>(progress.num_done), total = static_cast<double>(progress.total);
  std::string line = fmt::format("{} {}", progress.activity, amount(num_done));
  if (progress.total > 0) line += fmt::format(" of {} ({:.0f} %)", amount(total), 100 * num_done / total);
  line_.show(line + fmt::format(", {}/s", amount(num_done / seconds)));
}

void StepTimeEstimator::step_ended(Seconds now) {
  if (last_seconds_) intervals_.push_back((now - *last_seconds_).value);
  last_seconds_ = now;
  if (intervals_.size() > kMaxIntervals) intervals_.pop_front();
}

std::optional<Seconds> StepTimeEstimator::per_step() const {
  if (intervals_.empty()) return std::nullopt;
  const std::size_t num_groups = std::min(kMaxGroups, intervals_.size());
  std::vector<double> means;
  for (std::size_t group = 0; group < num_groups; ++group) {
    const std::size_t begin = group * intervals_.size() / num_groups;
    const std::size_t end = (group + 1) * intervals_.size() / num_groups;
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += intervals_[i];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  const auto middle = means.begin() + static_cast<std::ptrdiff_t>(num_groups / 2);
  std::nth_element(means.begin(), middle, means.end());
  return Seconds(*middle);
}

std::string progress_text(const StepMetrics& metrics, std::int64_t total_steps,
                          std::optional<Seconds> remaining, int columns) {
  std::vector<Part> parts = parts_of(metrics, total_steps, remaining);
  while (true) {
    std::string line;
    for (const Part& part : parts) line += (line.empty() ? "" : "  ") + part.text;
    if (parts.size() == 1 || line.size() <= static_cast<std::size_t>(columns)) return line;
    parts.erase(std::min_element(parts.begin(), parts.end(),
                                 [](const Part& a, const Part& b) { return a.weight < b.weight; }));
  }
}

void TrainingProgress::step_ended(const StepMetrics& metrics) {
  const bool is_first = !latest_;
  const std::optional<double> last_validation = latest_ ? latest_->validation_loss : std::nullopt;
  latest_ = metrics;
  if (!metrics.validation_loss) latest_->validation_loss = last_validation;
  step_time_.step_ended(line_.now());
  is_latest_shown_ = is_first || metrics.step == total_steps_;
  if (is_latest_shown_)
    line_.show_now(line_text());
  else if (line_.is_due())
    is_latest_shown_ = line_.show(line_text());
}

std::string TrainingProgress::line_text() const {
  std::optional<Seconds> remaining = step_time_.per_step();
  const std::int64_t remaining_steps = total_steps_ - latest_->step;
  if (remaining_steps > 0 && remaining)
    *remaining = *remaining * static_cast<double>(remaining_steps);
  else
    remaining.reset();
  return progress_text(*latest_, total_steps_, remaining, line_.columns());
}

void TrainingProgress::finish() {
  if (latest_ && !is_latest_shown_) line_.show_now(line_text());
  if (latest_) line_.keep();
  latest_.reset();
}

}  // namespace optimus
