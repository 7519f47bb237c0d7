#include "base/time_stamp.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace optimus::test {
namespace {

TEST(TimeStamp, FormatsAndParses) {
  EXPECT_EQ(time_stamp(WallClock::time_point(std::chrono::microseconds(1'000'000'000'000'042))),
            "2001-09-09 01:46:40.000042 ");
  EXPECT_EQ(find_time_stamp("2001-09-09 01:46:40.000042 and so on"), 1'000'000'000'000'042);
  for (const char* wrong : {"", "2001-09-09 01:46:40.000042", "2001-13-09 01:46:40.000042 ",
                            "2001-02-30 01:46:40.000042 ", "2001-09-09T01:46:40.000042 ", "rank 3"})
    EXPECT_FALSE(find_time_stamp(wrong)) << wrong;
}

TEST(TimeStamp, RoundTripsAndSortsAsText) {
  EXPECT_TRUE(rc::check([] {
    const auto micros = rc::gen::inRange<std::int64_t>(0, 4'000'000'000'000'000);
    const std::int64_t a = *micros, b = *micros;
    const auto stamp = [](std::int64_t at) {
      return time_stamp(WallClock::time_point(std::chrono::microseconds(at)));
    };
    RC_ASSERT(find_time_stamp(stamp(a)) == a);
    RC_ASSERT((a < b) == (stamp(a) < stamp(b)));
  }));
}

}  // namespace
}  // namespace optimus::test
