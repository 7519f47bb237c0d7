// A board with a short-lived cache: which lookups reach the underlying board.
#include "rundir/cached_board.h"

#include <gtest/gtest.h>

#include <thread>

#include "run/memory_board.h"

namespace optimus {
namespace {

class CountingBoard final : public Board {
 public:
  Outcome<void> set(const std::string& key, const std::string& value) override {
    return board_.set(key, value);
  }
  Outcome<std::optional<std::string>> find(const std::string& key) override {
    ++num_finds;
    if (is_gone) return failure("gone");
    return board_.find(key);
  }
  int num_finds = 0;
  bool is_gone = false;

 private:
  test::MemoryBoard board_;
};

std::optional<std::string> at(Board& board, const std::string& key) {
  return value_or_throw(board.find(key));
}

TEST(CachedBoard, ServesFetchedKeysFromCache) {
  CountingBoard underlying;
  CachedBoard board(underlying, std::chrono::hours(1));
  value_or_throw(underlying.set("a", "1"));
  board.fetch({"a", "b"});
  value_or_throw(underlying.set("a", "2"));  // by another process, a moment later
  underlying.num_finds = 0;
  EXPECT_EQ(at(board, "a"), "1");
  EXPECT_EQ(at(board, "b"), std::nullopt);
  EXPECT_EQ(underlying.num_finds, 0);
  EXPECT_EQ(at(board, "c"), std::nullopt);
  EXPECT_EQ(underlying.num_finds, 1);
}

TEST(CachedBoard, SeesItsOwnWrites) {
  CountingBoard underlying;
  CachedBoard board(underlying, std::chrono::hours(1));
  board.fetch({"a"});
  value_or_throw(board.set("a", "1"));
  EXPECT_EQ(at(board, "a"), "1");
}

// A caller that polls a key sees its change.
TEST(CachedBoard, CacheExpires) {
  CountingBoard underlying;
  CachedBoard board(underlying);
  board.fetch({"a"});
  value_or_throw(underlying.set("a", "1"));
  std::this_thread::sleep_for(std::chrono::milliseconds(25));
  EXPECT_EQ(at(board, "a"), "1");
}

TEST(CachedBoard, LooksUpKeysAfterFailedFetch) {
  CountingBoard underlying;
  CachedBoard board(underlying, std::chrono::hours(1));
  value_or_throw(underlying.set("a", "1"));
  underlying.is_gone = true;
  board.fetch({"a"});
  EXPECT_FALSE(board.find("a"));
  underlying.is_gone = false;
  EXPECT_EQ(at(board, "a"), "1");
}

}  // namespace
}  // namespace optimus
