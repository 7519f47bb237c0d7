// See byte_trie.h.
#include "tokenizer/byte_trie.h"

#include "tokenizer/hash_bytes.h"

namespace optimus {

std::size_t ByteTrie::slot_of(Node from, unsigned char byte) const {
  const std::uint64_t key = (static_cast<std::uint64_t>(from) << 8) | byte;
  const std::size_t mask = edges_.size() - 1;
  for (std::size_t slot = mix_bits(key) & mask;; slot = (slot + 1) & mask)
    if (edges_[slot].to == kNoNode || edges_[slot].from_and_byte == key) return slot;
}

void ByteTrie::grow() {
  std::vector<Edge> old(edges_.size() * 2);
  old.swap(edges_);
  for (const Edge& edge : old)
    if (edge.to != kNoNode)
      edges_[slot_of(static_cast<Node>(edge.from_and_byte >> 8),
                     static_cast<unsigned char>(edge.from_and_byte & 0xFF))] = edge;
}

bool ByteTrie::insert(std::string_view key, std::int32_t value) {
  Node node = kRoot;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    const std::size_t slot = slot_of(node, byte);
    if (edges_[slot].to == kNoNode) {
      edges_[slot] = {(static_cast<std::uint64_t>(node) << 8) | byte, static_cast<Node>(values_.size())};
      node = edges_[slot].to;
      values_.push_back(-1);
      if (values_.size() * 2 > edges_.size()) grow();
    } else {
      node = edges_[slot].to;
    }
  }
  if (values_[node] >= 0) return false;
  values_[node] = value;
  return true;
}

ByteTrie::Node ByteTrie::walk(std::string_view key, Node from) const {
  for (std::size_t i = 0; i < key.size() && from != kNoNode; ++i)
    from = step(from, static_cast<unsigned char>(key[i]));
  return from;
}

std::optional<ByteTrie::Match> ByteTrie::longest(std::string_view text, Node from) const {
  std::optional<Match> best;
  for (std::size_t i = 0; i < text.size(); ++i) {
    from = step(from, static_cast<unsigned char>(text[i]));
    if (from == kNoNode) break;
    if (values_[from] >= 0) best = {i + 1, values_[from]};
  }
  return best;
}

}  // namespace optimus
