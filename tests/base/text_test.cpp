// Suggestions for misspelled names, quoting and tables.
#include "base/text.h"

#include <gtest/gtest.h>

namespace optimus {
namespace {

TEST(Text, NearestNameForTypingErrors) {
  const std::vector<std::string> known = {"model", "data", "min-tokens", "dedup"};
  EXPECT_EQ(nearest("modle", known), "model");  // a swap counts as one error
  EXPECT_EQ(nearest("mintokens", known), "min-tokens");
  EXPECT_EQ(nearest("MODEL", known), "model");
  EXPECT_EQ(nearest("frobnicate", known), "");
  EXPECT_EQ(nearest(std::string(100000, 'x'), known), "");
  EXPECT_EQ(did_you_mean("dat", known), "; did you mean 'data'?");
}

TEST(Text, QuotesAreOneLineAndShort) {
  EXPECT_EQ(in_quotes("a\nb"), "'a\\x0ab'");
  EXPECT_EQ(in_quotes("abcdef", 3), "'abc…'");
}

TEST(Text, SplitJoinTrim) {
  EXPECT_EQ(split("a,b,,c", ','), (std::vector<std::string>{"a", "b", "", "c"}));
  EXPECT_EQ(join(std::vector<std::string>{"a", "b"}, " + "), "a + b");
  EXPECT_EQ(trim("  x y\t\n"), "x y");
  EXPECT_EQ(trim(" \n"), "");
}

TEST(Text, TableAlignsUnicodeToo) {
  TextTable table({"name", "size"});
  table.row({"é", "5"});
  table.row({"abc", "1,000"});
  EXPECT_EQ(table.text(), "name   size\né         5\nabc   1,000\n");
}

}  // namespace
}  // namespace optimus
