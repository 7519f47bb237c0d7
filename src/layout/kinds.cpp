// Groups tensors by a hash of their placements, then by comparison.
#include "layout/kinds.h"

#include <unordered_map>

namespace optimus {
namespace {

class Hash {
 public:
  void add(std::int64_t number) {
    value_ = (value_ ^ static_cast<std::uint64_t>(number)) * 0x9e3779b97f4a7c15ULL;
    value_ ^= value_ >> 29;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0;
};

std::uint64_t hash_of(std::span<const Layout* const> layouts, std::size_t tensor) {
  Hash hash;
  const TensorInfo& info = layouts[0]->tensors[tensor];
  for (int d = 0; d < info.shape.num_dims; ++d) hash.add(info.shape[d]);
  hash.add(info.bytes_per_element);
  for (const Layout* layout : layouts)
    for (const Placement& placement : layout->placements[tensor]) {
      hash.add(placement.grid), hash.add(placement.split_dim);
      for (const Span& part : placement.parts) hash.add(part.begin), hash.add(part.end);
    }
  return hash.value();
}

bool have_equal_placements(std::span<const Layout* const> layouts, std::size_t a, std::size_t b) {
  const auto& tensors = layouts[0]->tensors;
  if (tensors[a].shape != tensors[b].shape) return false;
  if (tensors[a].bytes_per_element != tensors[b].bytes_per_element) return false;
  for (const Layout* layout : layouts)
    if (layout->placements[a] != layout->placements[b]) return false;
  return true;
}

}  // namespace

Kinds kinds_of(std::span<const Layout* const> layouts) {
  Kinds kinds;
  std::unordered_multimap<std::uint64_t, int> by_hash;
  for (std::size_t t = 0; t < layouts[0]->tensors.size(); ++t) {
    const std::uint64_t hash = hash_of(layouts, t);
    int kind = -1;
    const auto [begin, end] = by_hash.equal_range(hash);
    for (auto it = begin; it != end && kind < 0; ++it) {
      const auto first = static_cast<std::size_t>(kinds.tensors[static_cast<std::size_t>(it->second)][0]);
      if (have_equal_placements(layouts, first, t)) kind = it->second;
    }
    if (kind < 0) {
      kind = static_cast<int>(kinds.tensors.size());
      kinds.tensors.emplace_back();
      by_hash.emplace(hash, kind);
    }
    auto& members = kinds.tensors[static_cast<std::size_t>(kind)];
    kinds.kind_of.push_back(kind);
    kinds.ordinal_of.push_back(static_cast<int>(members.size()));
    members.push_back(static_cast<int>(t));
  }
  return kinds;
}

}  // namespace optimus
