// Implements Board with the key-value store of a run.
#pragma once

#include <memory>

#include "rundir/board.h"
#include "store/key_store.h"

namespace optimus {

class StoreBoard final : public Board {
 public:
  // `store` may be shared with other objects. `prefix` is prepended to all keys.
  explicit StoreBoard(std::shared_ptr<KeyStore> store, std::string prefix = "")
      : store_(std::move(store)), prefix_(std::move(prefix)) {}
  static Outcome<std::unique_ptr<Board>> open(const StoreAddress& address, const Deadline& deadline) {
    Outcome<std::unique_ptr<KeyStore>> store = open_store(address, deadline);
    if (!store) return tl::unexpected(store.error());
    return std::make_unique<StoreBoard>(std::move(*store));
  }
  Outcome<void> set(const std::string& key, const std::string& value) override {
    return store_->set(prefix_ + key, value);
  }
  Outcome<std::optional<std::string>> find(const std::string& key) override {
    return store_->find(prefix_ + key);
  }
  Outcome<std::vector<std::optional<std::string>>> find_all(const std::vector<std::string>& keys) override {
    KeyStore::Query query;
    for (const std::string& key : keys) query.gets.push_back(prefix_ + key);
    return store_->query(query);
  }

 private:
  const std::shared_ptr<KeyStore> store_;
  const std::string prefix_;
};

}  // namespace optimus
