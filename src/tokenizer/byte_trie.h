// A set of texts with a number each; finds the longest one that a text begins with, in time of its length.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace optimus {

class ByteTrie {
 public:
  using Node = std::uint32_t;
  static constexpr Node kRoot = 0, kNowhere = UINT32_MAX;

  struct Match {
    std::size_t size;  // bytes
    std::int32_t value;
  };

  // value >= 0. Returns false, and changes nothing, when the key is there already.
  bool insert(std::string_view key, std::int32_t value);
  // Where the key's bytes lead from `from`; kNowhere when no inserted key goes that way.
  Node walk(std::string_view key, Node from = kRoot) const;
  // The longest non-empty key (less the bytes that led to `from`) at the front of `text`.
  std::optional<Match> longest(std::string_view text, Node from = kRoot) const;

 private:
  struct Edge {
    std::uint64_t from_and_byte = UINT64_MAX;
    Node to = kNowhere;
  };
  std::size_t slot_of(Node from, unsigned char byte) const;
  Node step(Node from, unsigned char byte) const { return edges_[slot_of(from, byte)].to; }
  void grow();

  std::vector<std::int32_t> values_ = {-1};            // by node; -1: no key ends here
  std::vector<Edge> edges_ = std::vector<Edge>(1024);  // open addressing; a power of two
};

}  // namespace optimus
