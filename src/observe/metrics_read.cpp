// Implements metrics_read.h.
#include "observe/metrics_read.h"

#include <cmath>

#include "observe/json_lines.h"

namespace optimus {
namespace {

constexpr std::size_t kMaxStepLine = 64 << 10;
constexpr std::int64_t kMaxStep = std::int64_t{1} << 53;  // larger numbers are not exact as double

StepMetrics metrics_in(const JsonView& view) {
  StepMetrics one{.step = view.at("step").integer(0, kMaxStep)};
  one.loss = view.number_or("loss", NAN);
  if (const auto tokens = view.find("tokens")) one.tokens = tokens->integer(0);
  one.seconds = Seconds(view.number_or("seconds", 0));
  one.tokens_per_second = view.number_or("tokens_per_second", NAN);
  if (const auto epoch = view.find("epoch")) one.epoch = epoch->integer(0, kMaxStep);
  if (const auto loss = view.find("validation_loss")) one.validation_loss = loss->number();
  return one;
}

}  // namespace

std::vector<StepMetrics> parse_metrics(std::string_view content, const std::string& source) {
  std::vector<StepMetrics> steps;
  for_each_json_line(content, source, "a line of metrics", kMaxStepLine,
                     [&](const JsonView& line) { steps.push_back(metrics_in(line)); });
  return steps;
}

}  // namespace optimus
