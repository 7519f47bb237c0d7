// Charts and their text: points are at the position of their numbers, long lines stay small, and no content
// becomes markup.
#include "observe/chart.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <regex>

#include "observe/html.h"
#include "observe/metrics_read.h"

namespace optimus {
namespace {

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Html, EscapesAllMarkup) {
  EXPECT_EQ(html_escaped("<b onclick=\"x('&')\">\n\x1b\xff"),
            "&lt;b onclick=&quot;x(&#39;&amp;&#39;)&quot;&gt;  \xef\xbf\xbd");
  rc::check([](const std::string& any) {
    const std::string safe = html_escaped(any);
    RC_ASSERT(safe.find_first_of("<>\"'\n\r\t") == std::string::npos);
    for (const char c : safe) RC_ASSERT(static_cast<unsigned char>(c) >= 0x20);
    RC_ASSERT(count_of(safe, "&") == count_of(safe, "&amp;") + count_of(safe, "&lt;") +
                                         count_of(safe, "&gt;") + count_of(safe, "&quot;") +
                                         count_of(safe, "&#39;"));
  });
}

// The plot spans 64 to 948 horizontally, and 222 (the smallest value) to 30 vertically.
TEST(Chart, PointsLieWhereTheirNumbersAre) {
  Chart chart{.title = "loss", .line = {{1, 4}, {2, 3}, {3, 2}}};
  EXPECT_NE(svg_of(chart).find("d=\"M64.0 30.0L506.0 126.0L948.0 222.0\""), std::string::npos);
  chart.line[1].value = NAN;
  EXPECT_NE(svg_of(chart).find("d=\"M64.0 30.0M948.0 222.0\""), std::string::npos);
  chart.begins_at_zero = true;
  EXPECT_NE(svg_of(chart).find("M948.0 126.0"), std::string::npos);
}

TEST(Chart, LongLinesKeepTheirExtremes) {
  Chart chart{.title = "speed"};
  for (int step = 1; step <= 1'000'000; ++step) chart.line.push_back({static_cast<double>(step), 5});
  chart.line[400'000].value = 1;
  chart.line[600'000].value = 9;
  const std::string svg = svg_of(chart);
  EXPECT_LT(svg.size(), 20'000U);
  EXPECT_NE(svg.find("222.0V126.0"), std::string::npos);  // from the smallest value to the middle
  EXPECT_NE(svg.find("126.0V30.0"), std::string::npos);
}

TEST(Chart, AnyNumbersStayInside) {
  rc::check([](const std::vector<std::pair<double, double>>& points, const std::string& any) {
    Chart chart{.title = any};
    for (const auto& [step, value] : points) chart.line.push_back({step, value});
    for (const double huge : {1e308, -1e308, 1e-308, HUGE_VAL}) chart.line.push_back({huge, huge});
    chart.dots = chart.line;
    chart.bands = {{-1e9, 1e9, any}}, chart.marks = {{3, any, any}, {1e99, any, any}};
    const std::string svg = svg_of(chart);
    RC_ASSERT(svg.find("nan") == std::string::npos || any.find("nan") != std::string::npos);
    RC_ASSERT(svg.find("inf") == std::string::npos || any.find("inf") != std::string::npos);
    static const std::regex kNumber("(?: x| cx)=\"(-?[0-9.e+-]+)\"");
    for (std::sregex_iterator it(svg.begin(), svg.end(), kNumber), end; it != end; ++it) {
      const double x = std::stod((*it)[1]);
      RC_ASSERT(x >= 0 && x <= 960);
    }
  });
}

TEST(Metrics, ParseTheirOwnLines) {
  StepMetrics one{.step = 7, .loss = 2.5, .tokens = 4096};
  one.seconds = Seconds(0.5), one.tokens_per_second = 8192, one.epoch = 2, one.validation_loss = 2.25;
  StepMetrics skipped{.step = 8, .loss = NAN};
  const std::vector<StepMetrics> read =
      parse_metrics(metrics_line(one) + "\n" + metrics_line(skipped) + "\n{\"step\":9", "m");
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(metrics_line(read[0]).substr(0, 26), metrics_line(one).substr(0, 26));
  EXPECT_EQ(read[0].tokens_per_second, 8192);
  EXPECT_EQ(read[0].epoch, 2);
  EXPECT_EQ(read[0].validation_loss, 2.25);
  EXPECT_TRUE(std::isnan(read[1].loss));
}

}  // namespace
}  // namespace optimus
