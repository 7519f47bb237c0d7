// When a training saves a checkpoint.
#include "settings/save_rule.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace optimus {
namespace {

TEST(SaveRule, StepsOrTime) {
  EXPECT_EQ(parse_save_rule("500", "--save-every"), (SaveRule{.steps = 500}));
  EXPECT_EQ(parse_save_rule("10m", "--save-every"), (SaveRule{.period = Seconds(600)}));
  EXPECT_EQ(parse_save_rule("0", "--save-every"), SaveRule{});
  for (const char* wrong : {"", "soon", "-3", "0s", "1e400s"})
    EXPECT_THROW(parse_save_rule(wrong, "--save-every"), UsageError) << wrong;
}

TEST(SaveRule, IsDue) {
  const SaveRule steps{.steps = 3}, time{.period = Seconds(60)};
  EXPECT_FALSE(is_due(steps, 2, Seconds(1e9)));
  EXPECT_TRUE(is_due(steps, 3, Seconds(0)));
  EXPECT_FALSE(is_due(time, 3, Seconds(59)));
  EXPECT_TRUE(is_due(time, 3, Seconds(60)));
  EXPECT_FALSE(is_due({}, 3, Seconds(1e9)));
}

}  // namespace
}  // namespace optimus
