// A run's store as a board: what salvage needs of it.
#pragma once

#include <memory>

#include "comm/c10d_link.h"
#include "run/board.h"

namespace optimus {

class StoreBoard final : public Board {
 public:
  explicit StoreBoard(std::unique_ptr<StoreClient> store) : store_(std::move(store)) {}
  static Outcome<std::unique_ptr<Board>> open(StoreClient::Place place, const Deadline& deadline) {
    if (place.address.empty()) place.address = "127.0.0.1";  // nobody connects to a board
    Outcome<std::unique_ptr<StoreClient>> store = StoreClient::connect(place, deadline);
    if (!store) return tl::unexpected(store.error());
    return std::make_unique<StoreBoard>(std::move(*store));
  }
  Outcome<void> set(const std::string& key, const std::string& value) override {
    return store_->set(key, value);
  }
  Outcome<std::optional<std::string>> find(const std::string& key) override { return store_->find(key); }

 private:
  const std::unique_ptr<StoreClient> store_;
};

}  // namespace optimus
