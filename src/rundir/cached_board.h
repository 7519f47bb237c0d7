// A cache for a board on which several components poll many keys. Recently fetched values are returned from
// memory. One thread.
#pragma once

#include <chrono>
#include <map>
#include <utility>

#include "rundir/board.h"

namespace optimus {

class CachedBoard final : public Board {
 public:
  // `board` must outlive this object. A fetched value is returned from memory for `cache_lifetime`, so
  // callers that wait for a key must keep polling for longer than that.
  explicit CachedBoard(Board& board, std::chrono::milliseconds cache_lifetime = std::chrono::milliseconds(20))
      : board_(board), cache_lifetime_(cache_lifetime) {}

  // Fetches all keys in one round trip if the board supports this. If the fetch fails, each key is looked up
  // when it is needed.
  void fetch(const std::vector<std::string>& keys) {
    cache_.clear();
    auto values = board_.find_all(keys);
    fetch_time_ = std::chrono::steady_clock::now();
    if (!values) return;
    for (std::size_t i = 0; i < keys.size(); ++i) cache_.insert_or_assign(keys[i], std::move((*values)[i]));
  }

  Outcome<void> set(const std::string& key, const std::string& value) override {
    cache_.erase(key);
    return board_.set(key, value);
  }
  Outcome<std::optional<std::string>> find(const std::string& key) override {
    if (std::chrono::steady_clock::now() - fetch_time_ < cache_lifetime_)
      if (const auto it = cache_.find(key); it != cache_.end()) return it->second;
    return board_.find(key);
  }

 private:
  Board& board_;
  const std::chrono::milliseconds cache_lifetime_;
  std::map<std::string, std::optional<std::string>> cache_;
  std::chrono::steady_clock::time_point fetch_time_{};
};

}  // namespace optimus
