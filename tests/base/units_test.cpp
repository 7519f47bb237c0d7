// Parsing and printing of sizes, counts and durations.
#include "base/units.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace optimus {
namespace {

TEST(Units, ReadsSizes) {
  EXPECT_EQ(parse_bytes("512", "x").value, 512);
  EXPECT_EQ(parse_bytes("70GiB", "x").value, 70LL << 30);
  EXPECT_EQ(parse_bytes("70 gib", "x").value, 70LL << 30);
  EXPECT_EQ(parse_bytes("1.5MB", "x").value, 1'500'000);
  for (const char* bad : {"", "GiB", "-1", "12xB", "1e400", "nan", "inf", "9e18GiB"})
    EXPECT_THROW(parse_bytes(bad, "--max-memory"), UserError) << bad;
}

TEST(Units, ReadsCountsAndDurations) {
  EXPECT_EQ(parse_count("15T", "x"), 15'000'000'000'000);
  EXPECT_EQ(parse_count("9007199254740993", "x"), 9007199254740993);  // not converted through a double
  EXPECT_DOUBLE_EQ(parse_seconds("10m", "x").value, 600);
  EXPECT_DOUBLE_EQ(parse_seconds("250ms", "x").value, 0.25);
  EXPECT_THROW(parse_count("many", "--tokens"), UserError);
  EXPECT_EQ(parse_count("1.1k", "x"), 1100);
  EXPECT_THROW(parse_count("1.5", "x"), UserError);
}

TEST(Units, MessageNamesOptionValueAndForm) {
  try {
    parse_bytes("12 parsecs", "--max-memory");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "--max-memory: '12 parsecs' is not a size such as 512, 1.5MB or 70GiB");
  }
}

TEST(Units, Prints) {
  EXPECT_EQ(text(Bytes(1536)), "1.50 KiB");
  EXPECT_EQ(text(Bytes(12)), "12 B");
  EXPECT_EQ(with_commas(8030261248), "8,030,261,248");
  EXPECT_EQ(with_commas(-1000), "-1,000");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(short_count(8.03e9), "8.03 B");
  EXPECT_EQ(percent(0.123), "12.3 %");
  EXPECT_EQ(percent(-0.123), "-12.3 %");
  EXPECT_EQ(percent(-1e-9), "0.0 %");
  EXPECT_EQ(text(Seconds(0.0012)), "1.2 ms");
  EXPECT_EQ(text(Seconds(200)), "3 m 20 s");
  EXPECT_EQ(text(Flops(3.12e14)), "312 TFLOP");
}

}  // namespace
}  // namespace optimus
