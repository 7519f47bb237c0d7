#include "cluster/kernel_times.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace optimus {
namespace {

TEST(KernelTimes, InterpolatesRates) {
  const RateTable table{{{1, 100}, {10, 1000}}, {1, 10, 100, 1000}};
  const auto at = [&](double x, double y) { return table.at(std::vector{x, y}); };
  EXPECT_DOUBLE_EQ(at(1, 10), 1);
  EXPECT_DOUBLE_EQ(at(100, 1000), 1000);
  // In the middle of a logarithmic axis: the geometric mean.
  EXPECT_NEAR(at(10, 10), 10, 1e-12);
  EXPECT_NEAR(at(10, 100), std::sqrt(10.0 * 100), 1e-9);
  // Outside the axis: the rate at its edge.
  EXPECT_DOUBLE_EQ(at(0.01, 1), 1);
  EXPECT_DOUBLE_EQ(at(1e9, 1e9), 1000);
  EXPECT_DOUBLE_EQ(RateTable({{{7}}, {3}}).at(std::vector{1000.0}), 3);
}

TEST(KernelTimes, SecondsEqualWorkOverRate) {
  KernelTimes times;
  times.tables["rope"] = {{{1000}}, {500}};
  EXPECT_DOUBLE_EQ(times.seconds("rope", 1000, {1000}), 2);
  EXPECT_LT(times.seconds("update", 1, {1}), 0);
}

std::string table_error(const RateTable& table, const std::string& name = "rope") {
  KernelTimes times;
  times.tables[name] = table;
  try {
    validate(times, "it");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(KernelTimes, RejectsInvalidTables) {
  EXPECT_EQ(table_error({{{1, 2}}, {1, 2}}), "");
  EXPECT_NE(table_error({{{2, 1}}, {1, 2}}).find("ascend"), std::string::npos);
  EXPECT_NE(table_error({{{0}}, {1}}).find("above 0"), std::string::npos);
  EXPECT_NE(table_error({{{1, 2}}, {1}}).find("got 1 rates, but the axes require 2"), std::string::npos);
  EXPECT_NE(table_error({{{1}}, {-1}}).find("expected positive numbers, got -1"), std::string::npos);
  EXPECT_NE(table_error({{{1}}, {1}}, "product").find("expected 3 axes, got 1"), std::string::npos);
  EXPECT_NE(table_error({{{}}, {}}).find("got 0 rates, but the axes require 0"), std::string::npos);
}

}  // namespace
}  // namespace optimus
