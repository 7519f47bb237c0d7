// Counter-based random numbers: the published test vectors, and independence of how the work is split.
#include "base/random.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <set>

namespace optimus {
namespace {

TEST(Random, PhiloxKnownAnswer) {
  // Random123's kat_vectors, philox4x32-10: counter 0, key 0.
  RandomKey zero;
  EXPECT_EQ(random_block(zero, 0),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

TEST(Random, IndependentOfSplit) {
  EXPECT_TRUE(rc::check("boxes tile a tensor", [] {
    const Shape shape{*rc::gen::inRange(1, 9), *rc::gen::inRange(1, 9), *rc::gen::inRange(1, 9)};
    const RandomKey key = RandomKey(*rc::gen::arbitrary<std::uint64_t>()).derive("init").derive(3);
    std::vector<float> whole(static_cast<std::size_t>(shape.num_elements()));
    fill_normal(key, shape, Box(shape), whole);
    Box box(shape);
    for (int d = 0; d < 3; ++d) {
      box[d].begin = *rc::gen::inRange<std::int64_t>(0, shape[d]);
      box[d].end = *rc::gen::inRange<std::int64_t>(box[d].begin, shape[d] + 1);
    }
    std::vector<float> part(static_cast<std::size_t>(box.num_elements()));
    std::vector<double> part64(part.size());
    fill_normal(key, shape, box, part);
    fill_normal(key, shape, box, part64);
    std::size_t next = 0;
    for (std::int64_t i = box[0].begin; i < box[0].end; ++i)
      for (std::int64_t j = box[1].begin; j < box[1].end; ++j)
        for (std::int64_t k = box[2].begin; k < box[2].end; ++k, ++next) {
          RC_ASSERT(part[next] == whole[static_cast<std::size_t>((i * shape[1] + j) * shape[2] + k)]);
          RC_ASSERT(part[next] == static_cast<float>(part64[next]));
        }
  }));
}

TEST(Random, MomentsOfUniformAndNormal) {
  constexpr std::int64_t n = 200'000;
  std::vector<double> values(n);
  fill_uniform(RandomKey(1), {n}, Box(Shape{n}), values);
  double sum = 0, squares = 0;
  for (const double v : values) {
    ASSERT_TRUE(v >= 0 && v < 1);
    sum += v, squares += v * v;
  }
  // Five standard errors: sqrt(1/12 / n) and sqrt(4/45 / n).
  EXPECT_NEAR(sum / n, 0.5, 5 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(squares / n, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / n));
  fill_normal(RandomKey(2), {n}, Box(Shape{n}), values);
  sum = squares = 0;
  for (const double v : values) sum += v, squares += v * v;
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2.0 / n));
}

TEST(Random, KeysAreDistinct) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 10; ++seed)
    for (std::uint64_t layer = 0; layer < 10; ++layer)
      for (const char* name : {"q", "k", "v"}) keys.insert(RandomKey(seed).derive(layer).derive(name).value);
  EXPECT_EQ(keys.size(), 300u);
}

TEST(Random, RandomBelowRespectsBound) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed, std::uint64_t index) {
    const std::uint64_t bound = *rc::gen::inRange<std::uint64_t>(1, 1000);
    RC_ASSERT(random_below(RandomKey(seed), index, bound) < bound);
  }));
}

}  // namespace
}  // namespace optimus
