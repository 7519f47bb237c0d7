// The keyed permutation is a bijection for every size and key, and it is unbiased.
#include "data/permutation.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>

namespace optimus {
namespace {

TEST(Permutation, IsABijectionForAnySizeAndKey) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed) {
    const auto n = *rc::gen::inRange<std::int64_t>(1, 3000);
    const Permutation shuffle{RandomKey(seed), n};
    std::vector<bool> seen(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t item = shuffle(i);
      RC_ASSERT(item >= 0 && item < n);
      RC_ASSERT(!seen[static_cast<std::size_t>(item)]);
      seen[static_cast<std::size_t>(item)] = true;
      RC_ASSERT(shuffle.inverse(item) == i);
    }
  }));
}

TEST(Permutation, HugeSizesNeedNoMemory) {
  const std::int64_t n = (std::int64_t{1} << 62) - 57;
  const Permutation shuffle{RandomKey(5), n};
  for (const std::int64_t i : {std::int64_t{0}, std::int64_t{1}, n / 2, n - 1}) {
    EXPECT_LT(shuffle(i), n);
    EXPECT_EQ(shuffle.inverse(shuffle(i)), i);
  }
}

TEST(Permutation, FirstItemIsUniform) {
  constexpr int n = 10, keys = 20000;
  std::array<int, n> first{};
  for (std::uint64_t key = 0; key < keys; ++key)
    ++first[static_cast<std::size_t>(Permutation{RandomKey(key), n}(0))];
  // Binomial with p = 1/10: five standard deviations.
  for (const int count : first) EXPECT_NEAR(count, keys / n, 5 * std::sqrt(keys * 0.1 * 0.9));
}

}  // namespace
}  // namespace optimus
