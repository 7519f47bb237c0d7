// The resident memory of a process, and its upper bound.
#include "switching/memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace optimus {
namespace {

TEST(ResidentMemory, GrowsWithAllocations) {
  const auto before = resident_memory(at::kCPU);
  ASSERT_TRUE(before.has_value());
  EXPECT_GT(before->in_use.value, 0);
  EXPECT_GT(before->limit, before->in_use);
  const std::vector<char> block(256 << 20, 1);
  const auto after = resident_memory(at::kCPU);
  ASSERT_TRUE(after.has_value());
  EXPECT_GE((after->in_use - before->in_use).value, 250 << 20);
  EXPECT_EQ(block.back(), 1);
}

}  // namespace
}  // namespace optimus
