// Where processes of a run leave short messages for each other beside their groups: the run's store, or, in tests, memory. Reached
// also when the groups are broken.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"

namespace optimus {

// Any thread. Calls fail rather than wait long.
class Board {
 public:
  virtual ~Board() = default;
  virtual Outcome<void> set(const std::string& key, const std::string& value) = 0;
  // Nothing when the key is not there.
  virtual Outcome<std::optional<std::string>> find(const std::string& key) = 0;
};

}  // namespace optimus
