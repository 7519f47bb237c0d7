// When a running training is saved.
#pragma once

#include <cstdint>
#include <string>

#include "base/units.h"

namespace optimus {

// Every so many steps, or so often; both 0: at the end only.
struct SaveRule {
  std::int64_t steps = 0;
  Seconds period{0};
  bool operator==(const SaveRule&) const = default;
};

// "500", "10m", "0". Throws UsageError that names `what`.
SaveRule parse_save_rule(const std::string& text, const std::string& what);

// Whether to save after `step` (from 1) when the last save, or the start, was `since` ago.
bool is_due(const SaveRule& rule, std::int64_t step, Seconds since);

}  // namespace optimus
