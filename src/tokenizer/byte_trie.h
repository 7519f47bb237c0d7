// A trie that maps strings to integers and finds the longest key that is a prefix of a text. The time is
// linear in the length of that prefix.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace optimus {

class ByteTrie {
 public:
  using Node = std::uint32_t;
  static constexpr Node kRoot = 0, kNoNode = UINT32_MAX;

  struct Match {
    std::size_t size;  // in bytes
    std::int32_t value;
  };

  // Inserts `key` with a value of at least 0. Returns false and has no effect if the key is already present.
  bool insert(std::string_view key, std::int32_t value);
  // The node that the bytes of `key` lead to, starting at `from`; kNoNode if there is none.
  Node walk(std::string_view key, Node from = kRoot) const;
  // The longest match at the start of `text` of a key that continues at node `from`. At least one byte of
  // `text` must match; Match::size counts only bytes of `text`.
  std::optional<Match> longest(std::string_view text, Node from = kRoot) const;

 private:
  struct Edge {
    std::uint64_t from_and_byte = UINT64_MAX;
    Node to = kNoNode;
  };
  std::size_t slot_of(Node from, unsigned char byte) const;
  Node step(Node from, unsigned char byte) const { return edges_[slot_of(from, byte)].to; }
  void grow();

  std::vector<std::int32_t> values_ = {-1};            // indexed by node; -1 if no key ends there
  std::vector<Edge> edges_ = std::vector<Edge>(1024);  // open addressing; the size is a power of two
};

}  // namespace optimus
