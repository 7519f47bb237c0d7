#include "comm/sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comm/rank_world.h"

namespace optimus::test {
namespace {

TEST(ReduceOp, RoundsHalfTypesOnce) {
  // 256 + 1 is 256 in bf16: added one at a time the ones would vanish, together they count.
  std::vector<at::Tensor> pieces;
  for (const float value : {256.F, 1.F, 1.F, 1.F, 1.F}) {
    pieces.push_back(at::empty({3}, at::kBFloat16));
    pieces.back().fill_(value);
  }
  sum_in_order(pieces, pieces[0], ReduceOp::sum);
  EXPECT_EQ(pieces[0][2].item<float>(), 260.F);
}

TEST(ReduceOp, MaximumWithNanIsNan) {
  const float none = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [a, b] : {std::pair(1.F, none), std::pair(none, 1.F)}) {
    std::vector<at::Tensor> pieces = {at::empty({1}, at::kFloat), at::empty({1}, at::kFloat)};
    pieces[0].fill_(a), pieces[1].fill_(b);
    sum_in_order(pieces, pieces[1], ReduceOp::maximum);
    EXPECT_TRUE(std::isnan(pieces[1].item<float>()));
  }
}

TEST(ReduceOp, EveryTypeAndLength) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong})
    for (const std::int64_t count : {0, 1, 1023, 1024, 1025, 5000})
      for (const ReduceOp kind : {ReduceOp::sum, ReduceOp::maximum}) {
        std::vector<at::Tensor> pieces;
        for (int rank = 0; rank < 3; ++rank) pieces.push_back(row_of(type, 5, rank, 0, count));
        sum_in_order(pieces, pieces[1], kind);
        EXPECT_TRUE(same_bits(pieces[1], sum_of(type, 5, {0, 1, 2}, 0, count, kind)))
            << c10::toString(type) << " " << count;
      }
}

}  // namespace
}  // namespace optimus::test
