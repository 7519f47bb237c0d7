// A trie that maps strings to integers and finds the longest key that is a prefix of a text, in time linear
// in its length.
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
    std::size_t size;  // bytes
    std::int32_t value;
  };

  // value >= 0. Returns false and has no effect if the key is already present.
  bool insert(std::string_view key, std::int32_t value);
  // The node reached from `from` by the bytes of `key`; kNoNode if no key has this prefix.
  Node walk(std::string_view key, Node from = kRoot) const;
  // The longest non-empty key that starts `text`, without the bytes that led to `from`.
  std::optional<Match> longest(std::string_view text, Node from = kRoot) const;

 private:
  struct Edge {
    std::uint64_t from_and_byte = UINT64_MAX;
    Node to = kNoNode;
  };
  std::size_t slot_of(Node from, unsigned char byte) const;
  Node step(Node from, unsigned char byte) const { return edges_[slot_of(from, byte)].to; }
  void grow();

  std::vector<std::int32_t> values_ = {-1};            // by node; -1: no key ends here
  std::vector<Edge> edges_ = std::vector<Edge>(1024);  // open addressing; the size is a power of two
};

}  // namespace optimus
