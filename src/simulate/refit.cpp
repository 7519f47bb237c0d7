// See refit.h.
#include "simulate/refit.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "simulate/fit.h"

namespace optimus {

std::vector<double> step_seconds_of(std::string_view metrics, const std::string& source) {
  std::vector<double> seconds;
  std::int64_t epoch = -1;
  int number = 0;
  while (!metrics.empty()) {
    const std::size_t end = metrics.find('\n');
    // The line is incomplete, because the writer is still active or was killed.
    if (end == std::string_view::npos) break;
    const std::string location = fmt::format("{} line {}", source, ++number);
    const std::string_view line = metrics.substr(0, end);
    metrics.remove_prefix(end + 1);
    if (trim(line).empty()) continue;
    const Json document = parse_json(line, location);
    const JsonView step(document, location);
    if (const std::int64_t step_epoch = step.integer_or("epoch", 0); step_epoch != epoch)
      seconds.clear(), epoch = step_epoch;
    const JsonView time = step.at("seconds");
    if (!(time.number() > 0 && time.number() < 1e9)) time.refuse("a number above 0");
    seconds.push_back(time.number());
  }
  if (seconds.empty()) throw UserError("{}: the file contains no steps", source);
  return seconds;
}

double typical_seconds(std::vector<double> steps) {
  ensure(!steps.empty(), "refitting needs at least one step");
  constexpr std::size_t kWarmUp = 3;
  if (steps.size() > 2 * kWarmUp) steps.erase(steps.begin(), steps.begin() + kWarmUp);
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), middle, steps.end());
  return *middle;
}

Refit refit(std::span<const MeasuredPlan> plans, const Constants& start) {
  Refit result;
  result.constant_names = {"residual.compute", "residual.memory", "residual.host"};
  if (std::any_of(plans.begin(), plans.end(), [](const MeasuredPlan& plan) { return plan.has_links; }))
    result.constant_names.emplace_back("residual.links");
  FitProblem problem;
  problem.constant_names = result.constant_names;
  for (const MeasuredPlan& plan : plans)
    problem.measured.push_back(plan.seconds), problem.weights.push_back(1);
  problem.predict = [&](std::size_t i, const Constants& c) { return plans[i].simulator->seconds(c); };
  // The median over the steps of a run is accurate to half a percent, whereas a residual factor may be as
  // large as 2.
  result.constants = fit(problem, start, {.steps = 60, .spread = 0.7, .noise = 0.005, .prior = start});
  for (const MeasuredPlan& plan : plans)
    result.rows.push_back({plan.name, plan.seconds, plan.simulator->seconds(start),
                           plan.simulator->seconds(result.constants), plan.num_steps});
  return result;
}

std::string text(const Refit& refit) {
  TextTable rows({"run", "steps", "measured s", "before s", "error", "now s", "error"});
  const auto error = [](double predicted, double measured) {
    return fmt::format("{:+.1f} %", 100 * (predicted / measured - 1));
  };
  for (const Refit::Row& row : refit.rows)
    rows.row({row.name, std::to_string(row.num_steps), fmt::format("{:.4f}", row.measured),
              fmt::format("{:.4f}", row.predicted_before), error(row.predicted_before, row.measured),
              fmt::format("{:.4f}", row.predicted_after), error(row.predicted_after, row.measured)});
  std::string result = rows.text() + "\n";
  for (const ConstantRow& row : constant_rows())
    if (std::find(refit.constant_names.begin(), refit.constant_names.end(), row.name) !=
        refit.constant_names.end())
      result += fmt::format("{:18} {:.4f}  {}\n", row.name, refit.constants.*row.member, row.meaning);
  return result;
}

OrderedJson to_json(const Refit& refit) {
  OrderedJson json;
  json["constants"] = OrderedJson::object();
  for (const ConstantRow& row : constant_rows())
    if (std::find(refit.constant_names.begin(), refit.constant_names.end(), row.name) !=
        refit.constant_names.end())
      json["constants"][std::string(row.name)] = refit.constants.*row.member;
  json["runs"] = OrderedJson::array();
  for (const Refit::Row& row : refit.rows)
    json["runs"].push_back({{"run", row.name},
                            {"steps", row.num_steps},
                            {"measured_seconds", row.measured},
                            {"predicted_seconds_before", row.predicted_before},
                            {"predicted_seconds", row.predicted_after}});
  return json;
}

}  // namespace optimus
