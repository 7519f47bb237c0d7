#include "simulate/csv.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace optimus {
namespace {

TEST(Csv, ReadsQuotesAndLineBreaks) {
  const CsvTable table = parse_csv("a,b\r\n1,\"x, \"\"y\"\"\nz\"\r\n\n,2\n", "t.csv");
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.cell(0, "b"), "x, \"y\"\nz");
  EXPECT_EQ(table.cell(1, "a"), "");
  EXPECT_EQ(table.cell(1, "b"), "2");
  EXPECT_EQ(table.cell(1, "c"), "");
}

TEST(Csv, ErrorsNameLine) {
  const auto message = [](std::string_view text) -> std::string {
    try {
      parse_csv(text, "t.csv");
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message("a,b\n1,2\n1,2,3\n"), "t.csv:3: expected 2 cells, as in the first line, got 3");
  EXPECT_EQ(message("a,b\n1,\"2\n"), "t.csv:2: unclosed quote");
  EXPECT_EQ(message(""), "t.csv: the file is empty; expected a first line with the column names");
  EXPECT_EQ(message("a,a\n"), "t.csv: duplicate column 'a'");
  EXPECT_NE(message("a\n\"x\"y\n").find("after a closing quote"), std::string::npos);
}

}  // namespace
}  // namespace optimus
