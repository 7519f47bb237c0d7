// A run's store as a board: what salvage needs of it.
#pragma once

#include <memory>

#include "run/board.h"
#include "store/key_store.h"

namespace optimus {

class StoreBoard final : public Board {
 public:
  explicit StoreBoard(std::unique_ptr<KeyStore> store) : store_(std::move(store)) {}
  static Outcome<std::unique_ptr<Board>> open(const StorePlace& place, const Deadline& deadline) {
    Outcome<std::unique_ptr<KeyStore>> store = open_store(place, deadline);
    if (!store) return tl::unexpected(store.error());
    return std::make_unique<StoreBoard>(std::move(*store));
  }
  Outcome<void> set(const std::string& key, const std::string& value) override {
    return store_->set(key, value);
  }
  Outcome<std::optional<std::string>> find(const std::string& key) override { return store_->find(key); }

 private:
  const std::unique_ptr<KeyStore> store_;
};

}  // namespace optimus
