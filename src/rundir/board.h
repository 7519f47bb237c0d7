// A key-value store for short messages between the processes of a run. It does not depend on communication
// groups. It is implemented by the run's store, or in memory for tests. It remains reachable when the groups
// are broken.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace optimus {

// Thread-safe. Calls fail instead of blocking for a long time.
class Board {
 public:
  virtual ~Board() = default;
  virtual Outcome<void> set(const std::string& key, const std::string& value) = 0;
  // Returns nullopt if the key does not exist.
  virtual Outcome<std::optional<std::string>> find(const std::string& key) = 0;
  // Finds several keys and returns their values in the same order.
  virtual Outcome<std::vector<std::optional<std::string>>> find_all(const std::vector<std::string>& keys) {
    std::vector<std::optional<std::string>> result;
    for (const std::string& key : keys) {
      Outcome<std::optional<std::string>> value = find(key);
      if (!value) return tl::unexpected(value.error());
      result.push_back(std::move(*value));
    }
    return result;
  }
};

}  // namespace optimus
