// transform_in_order keeps the order, propagates exceptions and ends its threads.
#include "base/parallel.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace optimus {
namespace {

std::vector<int> squares(int count, int threads, int poison) {
  int next = 0;
  std::vector<int> results;
  transform_in_order<int, int>(
      threads, [&]() -> std::optional<int> { return next < count ? std::optional(next++) : std::nullopt; },
      [&](int i) {
        if (i == poison) throw std::runtime_error("poison");
        return i * i;
      },
      [&](int square) { results.push_back(square); });
  return results;
}

TEST(Parallel, KeepsOrder) {
  for (const int threads : {1, 2, 7}) {
    const std::vector<int> results = squares(500, threads, -1);
    ASSERT_EQ(results.size(), 500u);
    for (int i = 0; i < 500; ++i) EXPECT_EQ(results[static_cast<std::size_t>(i)], i * i);
  }
  EXPECT_TRUE(squares(0, 3, -1).empty());
}

TEST(Parallel, PropagatesExceptions) {
  for (const int poison : {0, 3, 499}) EXPECT_THROW(squares(500, 4, poison), std::runtime_error);
}

}  // namespace
}  // namespace optimus
