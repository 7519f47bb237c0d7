// A KeyStore that can switch to another store while it is in use: when the process that hosts the store is
// lost, another one takes over. The contents of the previous store are lost with it. Thread-safe.
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
    return now()->set(key, value);
  }
  Outcome<std::optional<std::string>> find(const std::string& key) override { return now()->find(key); }
  Outcome<std::vector<std::optional<std::string>>> look(const Look& look) override {
    return now()->look(look);
  }
  Outcome<std::int64_t> count(const std::string& key) override { return now()->count(key); }
  Outcome<void> set_will(const std::string& key, const std::string& value) override {
    return now()->set_will(key, value);
  }
  Outcome<void> clear() override { return now()->clear(); }
  std::string own_address() const override { return now()->own_address(); }
  std::string store_address() const override { return now()->store_address(); }

 private:
  // Shared ownership: a call may still be using the previous store.
  std::shared_ptr<KeyStore> now() const {
    const std::lock_guard lock(mutex_);
    return store_;
  }
  mutable std::mutex mutex_;
  std::shared_ptr<KeyStore> store_;
};

}  // namespace optimus
