// A key-value board in memory.
#pragma once

#include "run/memory_store.h"
#include "rundir/board.h"

namespace optimus::test {

class MemoryBoard final : public Board {
 public:
  Outcome<void> set(const std::string& key, const std::string& value) override {
    return store_.set(key, value);
  }
  Outcome<std::optional<std::string>> find(const std::string& key) override { return store_.find(key); }

 private:
  MemoryStore store_;
};

}  // namespace optimus::test
