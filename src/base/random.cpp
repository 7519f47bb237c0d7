// Philox4x32-10 after Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#include "base/random.h"

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace optimus {
namespace {

using Words = std::array<std::uint32_t, 4>;

Words philox4x32(Words counter, std::uint32_t key0, std::uint32_t key1) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = kMultiplier0 * counter[0], b = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(a)};
    key0 += kWeyl0, key1 += kWeyl1;
  }
  return counter;
}

// Calls visit(index, length) for each run of contiguous elements of the box. `index` is the flat index of the
// first of these elements in the tensor.
template <typename Visit>
void for_each_run(const Shape& shape, const Box& box, Visit visit) {
  ensure(shape.num_dims == box.num_dims, "a box of {} dims does not match a tensor of {} dims", box.num_dims,
         shape.num_dims);
  if (box.is_empty()) return;
  if (shape.num_dims == 0) return visit(std::int64_t{0}, std::int64_t{1});
  const int last = shape.num_dims - 1;
  std::array<std::int64_t, kMaxDims> at{};
  for (int d = 0; d < last; ++d) at[static_cast<std::size_t>(d)] = box[d].begin;
  while (true) {
    std::int64_t flat = 0;
    for (int d = 0; d < last; ++d) flat = (flat + at[static_cast<std::size_t>(d)]) * shape[d + 1];
    visit(flat + box[last].begin, box[last].size());
    int d = last - 1;
    while (d >= 0 && ++at[static_cast<std::size_t>(d)] == box[d].end)
      at[static_cast<std::size_t>(d)] = box[d].begin, --d;
    if (d < 0) return;
  }
}

// Fills `out` with the transformed random words of the box's elements. Each random block is computed once per
// contiguous run.
template <typename Number, typename Transform>
void fill_box(RandomKey key, const Shape& shape, const Box& box, std::span<Number> out, Transform transform) {
  ensure(static_cast<std::int64_t>(out.size()) == box.num_elements(),
         "the output has {} elements, but the box has {}", out.size(), box.num_elements());
  std::size_t next = 0;
  for_each_run(shape, box, [&](std::int64_t flat, std::int64_t length) {
    for (std::int64_t i = flat; i < flat + length;) {
      const std::array<double, 4> values = transform(random_block(key, static_cast<std::uint64_t>(i) / 4));
      for (; i < flat + length;) {
        out[next++] = static_cast<Number>(values[static_cast<std::size_t>(i % 4)]);
        if (++i % 4 == 0) break;
      }
    }
  });
}

// Maps a random word to [0, 1). Uses only 24 bits, so that float and double results are equal.
double unit_interval(std::uint32_t word) { return static_cast<double>(word >> 8) * 0x1p-24; }

std::array<double, 4> uniforms(const Words& words) {
  return {unit_interval(words[0]), unit_interval(words[1]), unit_interval(words[2]), unit_interval(words[3])};
}

// Box-Muller on two pairs. The offset 0.5 keeps the logarithm finite.
std::array<double, 4> normals(const Words& words) {
  std::array<double, 4> result{};
  for (std::size_t pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(words[2 * pair]) + 0.5) * 0x1p-32));
    const double angle = 2.0 * std::numbers::pi * static_cast<double>(words[2 * pair + 1]) * 0x1p-32;
    result[2 * pair] = radius * std::cos(angle);
    result[2 * pair + 1] = radius * std::sin(angle);
  }
  return result;
}

}  // namespace

std::array<std::uint32_t, 4> random_block(RandomKey key, std::uint64_t index) {
  return philox4x32({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0},
                    static_cast<std::uint32_t>(key.value), static_cast<std::uint32_t>(key.value >> 32));
}

std::uint64_t random_bits(RandomKey key, std::uint64_t index) {
  const Words words = random_block(key, index);
  return (static_cast<std::uint64_t>(words[1]) << 32) | words[0];
}

double random_uniform(RandomKey key, std::uint64_t index) {
  return static_cast<double>(random_bits(key, index) >> 11) * 0x1p-53;
}

std::uint64_t random_below(RandomKey key, std::uint64_t index, std::uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(random_bits(key, index)) * bound) >> 64);
}

void fill_uniform(RandomKey key, const Shape& shape, const Box& box, std::span<float> out) {
  fill_box(key, shape, box, out, uniforms);
}
void fill_uniform(RandomKey key, const Shape& shape, const Box& box, std::span<double> out) {
  fill_box(key, shape, box, out, uniforms);
}
void fill_normal(RandomKey key, const Shape& shape, const Box& box, std::span<float> out) {
  fill_box(key, shape, box, out, normals);
}
void fill_normal(RandomKey key, const Shape& shape, const Box& box, std::span<double> out) {
  fill_box(key, shape, box, out, normals);
}

}  // namespace optimus
