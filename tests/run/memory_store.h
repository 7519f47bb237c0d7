// A key-value store in memory.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "store/key_store.h"

namespace optimus::test {

class MemoryStore final : public KeyStore {
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
  Outcome<std::int64_t> increment(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    return ++counts_[key];
  }
  Outcome<void> set_last_will(const std::string&, const std::string&) override { return {}; }
  Outcome<void> clear() override { return {}; }
  std::string own_address() const override { return ""; }
  std::string store_address() const override { return ""; }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::int64_t> counts_;
};

}  // namespace optimus::test
