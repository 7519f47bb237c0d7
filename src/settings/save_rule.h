// Determines when a running training saves a checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "base/units.h"

namespace optimus {

// Saves every `steps` steps, or every `period`; if both are 0, only at the end.
struct SaveRule {
  std::int64_t steps = 0;
  Seconds period{0};
  bool operator==(const SaveRule&) const = default;
};

// Parses "500", "10m" or "0". Throws a UsageError that names the setting.
SaveRule parse_save_rule(const std::string& text, const std::string& setting_name);

// Whether to save after `step` (from 1) if the last save, or the start, was `since` ago.
bool is_due(const SaveRule& rule, std::int64_t step, Seconds since);

}  // namespace optimus
