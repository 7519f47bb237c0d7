// Where processes of a run leave short messages for each other beside their groups: the run's store, or, in tests, memory. Reached
// also when the groups are broken.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace optimus {

// Any thread. Calls fail rather than wait long.
class Board {
 public:
  virtual ~Board() = default;
  virtual Outcome<void> set(const std::string& key, const std::string& value) = 0;
  // Nothing when the key is not there.
  virtual Outcome<std::optional<std::string>> find(const std::string& key) = 0;
  // The same of many, in their order.
  virtual Outcome<std::vector<std::optional<std::string>>> find_all(const std::vector<std::string>& keys) {
    std::vector<std::optional<std::string>> result;
    for (const std::string& key : keys) {
      Outcome<std::optional<std::string>> found = find(key);
      if (!found) return tl::unexpected(found.error());
      result.push_back(std::move(*found));
    }
    return result;
  }
};

}  // namespace optimus
