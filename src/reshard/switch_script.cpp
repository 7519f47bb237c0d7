// See switch_script.h.
#include "reshard/switch_script.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/options.h"
#include "base/text.h"
#include "plan/plan_json.h"
#include "plan/validate.h"

namespace optimus {
namespace {

struct ScriptLine {
  std::int64_t step = 0;
  Path plan;
};

std::vector<ScriptLine> parse_script(const std::string& script) {
  std::vector<ScriptLine> lines;
  if (script.empty()) return lines;
  for (const std::string& entry : split(script, ',')) {
    const std::size_t colon = entry.find(':');
    ScriptLine& line = lines.emplace_back();
    const char* const end = entry.data() + std::min(colon, entry.size());
    const auto [rest, error] = std::from_chars(entry.data(), end, line.step);
    if (colon == std::string::npos || error != std::errc() || rest != end || line.step < 1 ||
        colon + 1 == entry.size())
      throw UsageError("--switch-at: {} is not of the form STEP:PLAN, such as 200:plan.json", entry);
    line.plan = entry.substr(colon + 1);
  }
  std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  for (std::size_t i = 1; i < lines.size(); ++i)
    if (lines[i].step == lines[i - 1].step)
      throw UsageError("--switch-at: step {} is listed twice; a run has one plan at a time", lines[i].step);
  return lines;
}

}  // namespace

std::string with_absolute_paths(const std::string& script) {
  std::vector<std::string> entries;
  for (const ScriptLine& line : parse_script(script))
    entries.push_back(fmt::format("{}:{}", line.step, std::filesystem::absolute(line.plan).string()));
  return join(entries, ",");
}

std::vector<ScriptedSwitch> read_switch_script(const std::string& script, const Plan& first,
                                               const ModelSpec& model, const std::vector<Phase>& phases) {
  std::vector<ScriptedSwitch> result;
  for (const ScriptLine& line : parse_script(script)) {
    Plan plan = read_plan(line.plan);
    validate(plan, model, line.plan.string());
    const Phase phase =
        phases.empty() ? Phase{0, first.batch, first.sequence_length} : phase_at(phases, line.step);
    if (plan.batch != phase.batch || plan.sequence_length != phase.sequence_length)
      throw UserError("--switch-at: {} is for batch {} of {} tokens, but the run has {} of {} at that step",
                      line.plan.string(), plan.batch, plan.sequence_length, phase.batch,
                      phase.sequence_length);
    if (plan.precision != first.precision)
      throw UserError("--switch-at: {} is for {}, but the run has {}", line.plan.string(),
                      text(plan.precision), text(first.precision));
    result.push_back({line.step, std::move(plan)});
  }
  return result;
}

}  // namespace optimus
