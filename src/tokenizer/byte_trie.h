// A trie that maps strings to integers and finds the longest key that is a prefix of a text. A lookup
// takes time linear in the number of bytes that it visits.
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

  // Inserts `key` with a non-negative value. Returns false and has no effect if the key is already present.
  bool insert(std::string_view key, std::int32_t value);
  // The node that is reached from `from` by the bytes of `key`, or kNoNode if there is none.
  Node walk(std::string_view key, Node from = kRoot) const;
  // The longest match at the start of `text` among the keys that continue at node `from`. At least one byte
  // of `text` must match. Match::size counts only bytes of `text`.
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
