// Implements metrics_read.h.
#include "observe/metrics_read.h"

#include <cmath>

#include "observe/json_lines.h"

namespace optimus {
namespace {

constexpr std::size_t kMaxStepLine = 64 << 10;
// Larger integers cannot be represented exactly as a double.
constexpr std::int64_t kMaxStep = std::int64_t{1} << 53;

StepMetrics metrics_in(const JsonView& view) {
  StepMetrics step_metrics{.step = view.at("step").integer(0, kMaxStep)};
  step_metrics.loss = view.number_or("loss", NAN);
  if (const auto tokens = view.find("tokens")) step_metrics.tokens = tokens->integer(0);
  step_metrics.seconds = Seconds(view.number_or("seconds", 0));
  step_metrics.tokens_per_second = view.number_or("tokens_per_second", NAN);
  if (const auto epoch = view.find("epoch")) step_metrics.epoch = epoch->integer(0, kMaxStep);
  if (const auto loss = view.find("validation_loss")) step_metrics.validation_loss = loss->number();
  return step_metrics;
}

}  // namespace

std::vector<StepMetrics> parse_metrics(std::string_view content, const std::string& source) {
  std::vector<StepMetrics> steps;
  for_each_json_line(content, source, "a line of metrics", kMaxStepLine,
                     [&](const JsonView& line) { steps.push_back(metrics_in(line)); });
  return steps;
}

}  // namespace optimus
