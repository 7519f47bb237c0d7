// A KeyStore that can switch to another store while it is in use. It switches when the process that hosts the
// store is lost and another process takes over. The contents of the previous store are lost. Thread-safe.
#pragma once

#include <memory>
#include <mutex>

#include "store/key_store.h"

namespace optimus {

class MovableStore final : public KeyStore {
 public:
  explicit MovableStore(std::shared_ptr<KeyStore> store) : store_(std::move(store)) {}
  void move_to(std::shared_ptr<KeyStore> store) {
    const std::lock_guard lock(mutex_);
    store_ = std::move(store);
  }
  Outcome<void> set(const std::string& key, const std::string& value) override {
    return current()->set(key, value);
  }
  Outcome<std::optional<std::string>> find(const std::string& key) override { return current()->find(key); }
  Outcome<std::vector<std::optional<std::string>>> query(const Query& query) override {
    return current()->query(query);
  }
  Outcome<std::int64_t> increment(const std::string& key) override { return current()->increment(key); }
  Outcome<void> set_last_will(const std::string& key, const std::string& value) override {
    return current()->set_last_will(key, value);
  }
  Outcome<void> clear() override { return current()->clear(); }
  std::string own_address() const override { return current()->own_address(); }
  std::string store_address() const override { return current()->store_address(); }

 private:
  // Ownership is shared because a call may still be using the previous store.
  std::shared_ptr<KeyStore> current() const {
    const std::lock_guard lock(mutex_);
    return store_;
  }
  mutable std::mutex mutex_;
  std::shared_ptr<KeyStore> store_;
};

}  // namespace optimus
