// Determines when a running training saves a checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "base/units.h"

namespace optimus {

// Saves every `steps` steps or every `period`. If both are 0, saves only at the end.
struct SaveRule {
  std::int64_t steps = 0;
  Seconds period{0};
  bool operator==(const SaveRule&) const = default;
};

// Parses "500", "10m" or "0". Throws UsageError with the name of the setting.
SaveRule parse_save_rule(const std::string& text, const std::string& setting_name);

// Whether to save after `step`, which is counted from 1. `since` is the time since the last save or the
// start.
bool is_due(const SaveRule& rule, std::int64_t step, Seconds since);

}  // namespace optimus
