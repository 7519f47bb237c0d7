#include "rundir/logs.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/temporary_folder.h"
#include "base/time_stamp.h"

namespace optimus::test {
namespace {

std::string stamped(std::int64_t micros, const std::string& line) {
  return time_stamp(WallClock::time_point(std::chrono::microseconds(micros))) + line + "\n";
}

constexpr std::int64_t kSecond = 1'000'000;

TEST(Logs, LinesWithoutTimeBelongToPreviousLine) {
  const std::vector<LogLine> lines =
      parse_log("a library speaks\n" + stamped(5, "first") + "more of it\n" + stamped(9, "second"), 3);
  EXPECT_EQ(lines, (std::vector<LogLine>{
                       {0, 3, "a library speaks"}, {5, 3, "first"}, {5, 3, "more of it"}, {9, 3, "second"}}));
  EXPECT_EQ(parse_log("half a line", 0), (std::vector<LogLine>{{0, 0, "half a line"}}));
  EXPECT_TRUE(parse_log("", 0).empty());
}

TEST(Logs, AreMergedAroundTheFailure) {
  const TemporaryFolder folder;
  folder.write("run/logs/rank-0.log",
               stamped(100 * kSecond, "begins") + stamped(160 * kSecond, "rank 1 is missing"));
  folder.write("run/logs/rank-1.log", stamped(159 * kSecond, "works") + "and speaks\n");
  folder.write("run/logs/run.log", stamped(120 * kSecond, "failed: before") +
                                       stamped(161 * kSecond, "failed: rank 1 was killed"));
  folder.write("run/logs/settings.json", "{}");
  folder.write("run/logs/rank-x.log", "no rank\n");
  const auto texts = [&](const LogQuery& query) {
    std::vector<std::string> result;
    for (const LogLine& line : read_logs(folder / "run", query)) result.push_back(line.text);
    return result;
  };
  EXPECT_EQ(
      texts({.window = Seconds(10)}),
      (std::vector<std::string>{"works", "and speaks", "rank 1 is missing", "failed: rank 1 was killed"}));
  EXPECT_EQ(texts({.window = Seconds(10), .rank = 1}), (std::vector<std::string>{"works", "and speaks"}));
  EXPECT_EQ(texts({}).size(), 6U);
  EXPECT_THROW(texts({.rank = 2}), UserError);
  EXPECT_THROW(read_logs(folder / "nothing", {}), UserError);
  log_failure(folder / "run", "now");
  EXPECT_EQ(texts({.window = Seconds(60)}), std::vector<std::string>{"failed: now"});
}

TEST(Logs, ReadsOnlyEndOfLongFiles) {
  const TemporaryFolder folder;
  std::string content;
  for (int i = 0; i < 1000; ++i) content += stamped(i * kSecond, fmt::format("line {}", i));
  folder.write("run/logs/rank-0.log", content);
  const std::vector<LogLine> lines = read_logs(folder / "run", {}, Bytes(200));
  ASSERT_GE(lines.size(), 2U);
  EXPECT_LE(lines.size(), 6U);
  EXPECT_EQ(lines.back().text, "line 999");
  EXPECT_EQ(lines.front().text, fmt::format("line {}", 1000 - lines.size()));
}

TEST(Logs, MergingKeepsOrderWithinFiles) {
  EXPECT_TRUE(rc::check([] {
    std::vector<std::vector<LogLine>> files;
    for (int rank = 0; rank < 3; ++rank) {
      std::string content;
      std::int64_t time = *rc::gen::inRange(0, 10);
      const int count = *rc::gen::inRange(0, 12);
      for (int i = 0; i < count; ++i) {
        time += *rc::gen::inRange(0, 3);
        content += *rc::gen::arbitrary<bool>() ? stamped(time, std::to_string(i)) : std::to_string(i) + "\n";
      }
      files.push_back(parse_log(content, rank));
    }
    const std::vector<LogLine> all = merge_logs(files, {});
    for (int rank = 0; rank < 3; ++rank) {
      std::vector<LogLine> own;
      for (const LogLine& line : all)
        if (line.rank == rank) own.push_back(line);
      RC_ASSERT(own == files[static_cast<std::size_t>(rank)]);
    }
    RC_ASSERT(std::is_sorted(all.begin(), all.end(),
                             [](const auto& a, const auto& b) { return a.micros < b.micros; }));
  }));
}

}  // namespace
}  // namespace optimus::test
