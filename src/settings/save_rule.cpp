// Implements save_rule.h.
#include "settings/save_rule.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/text.h"

namespace optimus {

SaveRule parse_save_rule(const std::string& text, const std::string& setting_name) {
  const bool is_number =
      !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
  try {
    if (is_number) return {.steps = parse_count(text, setting_name)};
    const Seconds period = parse_seconds(text, setting_name);
    if (period.value > 0) return {.period = period};
  } catch (const UserError&) {
  }
  throw UsageError("{}: expected a number of steps or a duration such as 10m, got {}", setting_name,
                   in_quotes(text));
}

bool is_due(const SaveRule& rule, std::int64_t step, Seconds since) {
  if (rule.steps > 0) return step % rule.steps == 0;
  return rule.period.value > 0 && since.value >= rule.period.value;
}

}  // namespace optimus
