// metrics.jsonl: numbers survive, each step is recorded once regardless of kills, a full disk is reported
// once.
#include "observe/metrics.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <bit>
#include <cmath>

#include "base/failing_file_system.h"
#include "base/json.h"
#include "base/temporary_folder.h"
#include "base/text.h"

namespace optimus {
namespace {

std::string lines(std::int64_t first, std::int64_t last) {
  std::string result;
  for (std::int64_t step = first; step <= last; ++step) result += metrics_line({.step = step}) + "\n";
  return result;
}

// Rank 0 of a run is stopped while it opens the records, and wakes up after another process has taken them
// over.
TEST(MetricsFile, LateProcessDoesNotReplaceNewerFile) {
  TemporaryFolder folder;
  RealFileSystem files;
  const Path path = folder / "m";
  std::optional<MetricsFile> others;
  const auto others_take_over = [&] {
    remove_temporaries(files, path);
    others = value_or_throw(MetricsFile::open(files, path, 4));
    for (int step = 1; step <= 4; ++step) value_or_throw(others->append({.step = step}));
  };
  EXPECT_FALSE(MetricsFile::open(files, path, 2, others_take_over));
  value_or_throw(others->append({.step = 5}));
  const std::string text = value_or_throw(read_file(path));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
  // A process that notices this in time changes nothing.
  EXPECT_THROW((void)MetricsFile::open(files, path, 2, [] { throw 1; }), int);
  EXPECT_EQ(value_or_throw(read_file(path)), text);
}

TEST(Metrics, LineHasItsKeysInOrder) {
  StepMetrics metrics{.step = 3, .loss = 2.5, .grad_norm = 0.1, .learning_rate = 3e-4, .tokens = 4096};
  metrics.seconds = Seconds(0.5);
  metrics.tokens_per_second = 8192;
  EXPECT_EQ(metrics_line(metrics),
            R"({"step":3,"loss":2.5,"grad_norm":0.1,"lr":0.0003,"tokens":4096,"seconds":0.5,)"
            R"("tokens_per_second":8192.0,"epoch":0})");
  metrics.saved = SaveMetrics{2, Bytes(640), Seconds(0.25), Seconds(2)};
  EXPECT_TRUE(metrics_line(metrics).ends_with(
      R"("saved":{"step":2,"bytes":640,"pause_seconds":0.25,"write_seconds":2.0}})"));
  metrics.saved.reset();
  metrics.is_skipped = true;
  metrics.loss = std::nan("");
  metrics.grad_norm = HUGE_VAL;
  metrics.loss_scale = 1024;
  metrics.validation_loss = 3;
  metrics.tflops = 1.5;
  metrics.mfu = 0.25;
  metrics.memory = Bytes(1 << 30);
  EXPECT_EQ(metrics_line(metrics),
            R"({"step":3,"loss":null,"grad_norm":null,"lr":0.0003,"tokens":4096,"seconds":0.5,)"
            R"("tokens_per_second":8192.0,"epoch":0,"skipped":true,"loss_scale":1024.0,)"
            R"("validation_loss":3.0,"tflops":1.5,"mfu":0.25,"memory_bytes":1073741824})");
}

TEST(Metrics, NumbersReadBackExactly) {
  EXPECT_TRUE(rc::check([](std::uint64_t bits) {
    const auto number = std::bit_cast<double>(bits);
    const Json read = Json::parse(metrics_line({.step = 1, .loss = number}))["loss"];
    if (std::isfinite(number))
      RC_ASSERT(std::bit_cast<std::uint64_t>(read.get<double>()) == bits);
    else
      RC_ASSERT(read.is_null());
  }));
}

TEST(Metrics, LinesAreWrittenImmediately) {
  const TemporaryFolder folder;
  RealFileSystem files;
  auto metrics = value_or_throw(MetricsFile::open(files, folder / "m", 0));
  for (std::int64_t step = 1; step < 4; ++step) {
    ASSERT_TRUE(metrics.append({.step = step}));
    EXPECT_EQ(*read_file(folder / "m"), lines(1, step));
  }
  EXPECT_EQ(folder.names(), std::vector<std::string>{"m"});
}

TEST(Metrics, EachStepIsRecordedOnceAfterAnyKill) {
  EXPECT_TRUE(rc::check([] {
    const std::string whole = lines(1, *rc::gen::inRange(0, 30));
    const std::string left = whole.substr(0, *rc::gen::inRange<std::size_t>(0, whole.size() + 1));
    const std::int64_t complete = std::count(left.begin(), left.end(), '\n');
    const auto resumed = *rc::gen::inRange<std::int64_t>(0, complete + 1);
    const TemporaryFolder folder;
    folder.write("m", left);
    RealFileSystem files;
    auto metrics = value_or_throw(MetricsFile::open(files, folder / "m", resumed));
    for (std::int64_t step = resumed + 1; step < resumed + 4; ++step)
      RC_ASSERT(metrics.append({.step = step}).has_value());
    RC_ASSERT(*read_file(folder / "m") == lines(1, resumed + 3));
  }));
}

TEST(Metrics, RejectsInvalidLinesWithLineNumber) {
  const TemporaryFolder folder;
  RealFileSystem files;
  const auto message = [&](const std::string& content) {
    folder.write("m", content);
    const std::string text = message_of([&] { (void)MetricsFile::open(files, folder / "m", 9); });
    EXPECT_EQ(*read_file(folder / "m"), content);
    return text;
  };
  EXPECT_NE(message(lines(1, 2) + "hello\n").find("m line 3"), std::string::npos);
  EXPECT_NE(message(lines(1, 1) + "{\"loss\": 1}\n").find("m line 2"), std::string::npos);
  EXPECT_NE(message("[]\n").find("m line 1"), std::string::npos);
  EXPECT_NE(message(std::string(100'000, ' ') + "\n").find("at most 65536"), std::string::npos);
  EXPECT_EQ(message(lines(1, 2)), "");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"m"});
  EXPECT_FALSE(MetricsFile::open(files, folder.path(), 0));  // a folder
}

TEST(Metrics, FullDiskIsReportedOnceAndKeepsOldLines) {
  // create, write, sync, rename, sync of the folder, first line, second line: each fails once.
  for (int calls = 0; calls < 7; ++calls) {
    const TemporaryFolder folder;
    folder.write("m", lines(1, 5));
    FailingFileSystem files(calls);
    Outcome<MetricsFile> metrics = MetricsFile::open(files, folder / "m", 3);
    EXPECT_EQ(metrics.has_value(), calls >= 5);
    if (!metrics) {
      EXPECT_NE(metrics.error().why.find(folder.path().string()), std::string::npos) << metrics.error().why;
    } else {
      int num_failures = 0;
      for (std::int64_t step = 4; step < 8; ++step) num_failures += !metrics->append({.step = step});
      EXPECT_EQ(num_failures, 1);
    }
    EXPECT_TRUE(starts_with(*read_file(folder / "m"), lines(1, 3)));
    EXPECT_EQ(folder.names(), std::vector<std::string>{"m"});
  }
}

}  // namespace
}  // namespace optimus
