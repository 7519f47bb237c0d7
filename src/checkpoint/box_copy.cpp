// See box_copy.h.
#include "checkpoint/box_copy.h"

#include <array>

namespace optimus {
namespace {

using Index = std::array<std::int64_t, kMaxDims>;

// The offset of the element at `position` in the row-major values of `box`.
std::int64_t offset_of(const Index& position, const Box& box) {
  std::int64_t offset = 0;
  for (int d = 0; d < box.num_dims; ++d)
    offset = offset * box[d].size() + position[static_cast<std::size_t>(d)] - box[d].begin;
  return offset;
}

template <typename Real>
void copy(const StoredBox& source, const Box& common, const Box& target, std::span<Real> out) {
  if (common.is_empty()) return;
  // The trailing dimensions that are contiguous in both boxes are copied in one run. The loop iterates over
  // the other dimensions.
  int outer_dims = common.num_dims - 1;
  std::int64_t length = common[outer_dims].size();
  while (outer_dims > 0 && common[outer_dims] == source.box[outer_dims] &&
         common[outer_dims] == target[outer_dims])
    length *= common[--outer_dims].size();
  const auto element_bytes = static_cast<std::size_t>(width(source.type)),
             run = static_cast<std::size_t>(length);
  Index at{};
  for (int d = 0; d < common.num_dims; ++d) at[static_cast<std::size_t>(d)] = common[d].begin;
  while (true) {
    const auto from = static_cast<std::size_t>(offset_of(at, source.box));
    const auto to = static_cast<std::size_t>(offset_of(at, target));
    decode(source.type, source.bytes.subspan(from * element_bytes, run * element_bytes),
           out.subspan(to, run));
    int d = outer_dims - 1;
    for (; d >= 0; --d) {
      auto& index = at[static_cast<std::size_t>(d)];
      if (++index < common[d].end) break;
      index = common[d].begin;
    }
    if (d < 0) return;
  }
}

}  // namespace

void copy_box(const StoredBox& source, const Box& common, const Box& target, std::span<float> out) {
  copy(source, common, target, out);
}
void copy_box(const StoredBox& source, const Box& common, const Box& target, std::span<double> out) {
  copy(source, common, target, out);
}

}  // namespace optimus
