// A board in memory.
#pragma once

#include <map>
#include <mutex>

#include "run/board.h"

namespace optimus::test {

class MemoryBoard final : public Board {
 public:
  Outcome<void> set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    return {};
  }
  Outcome<std::optional<std::string>> find(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

}  // namespace optimus::test
