// Progress output: how often, how wide, with which estimate, on a terminal and in a log.
#include "observe/progress.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/temporary_folder.h"
#include "base/text.h"
#include "observe/screen.h"

namespace optimus {
namespace {

using Lines = std::vector<std::string>;

constexpr int kAnyWidth = std::numeric_limits<int>::max();

StepMetrics metrics_of(std::int64_t step) {
  StepMetrics metrics{.step = step, .loss = 3.41234, .grad_norm = 0.91, .learning_rate = 3e-4};
  metrics.tokens_per_second = 52'100;
  metrics.tflops = 1.234;
  metrics.mfu = 0.412;
  metrics.memory = Bytes(3 << 29);
  return metrics;
}

// A log file, and a clock that the test advances.
struct Log {
  TemporaryFolder folder;
  std::FILE* out = std::fopen((folder / "log").c_str(), "w");
  Seconds time{1000};
  Clock clock = [this] { return time; };
  ~Log() { std::fclose(out); }
  Lines lines() const { return split(*read_file(folder / "log"), '\n'); }
};

TEST(Progress, LineContainsAllValues) {
  EXPECT_EQ(
      progress_text(metrics_of(120), 2000, Seconds(200), kAnyWidth),
      "step 120/2000  loss 3.4123  grad 0.910  lr 3.00e-04  52.10 K tokens/s  1.23 TFLOP/s  MFU 41.2 %  "
      "1.50 GiB  ETA 3 m 20 s");
  StepMetrics bare{.step = 7, .loss = std::nan(""), .is_skipped = true, .validation_loss = 10};
  EXPECT_EQ(progress_text(bare, 0, std::nullopt, kAnyWidth),
            "step 7  skipped  loss nan  validation 10.000  grad 0.00  lr 0.00e+00  0 tokens/s");
}

TEST(Progress, NarrowLinesKeepImportantParts) {
  EXPECT_EQ(progress_text(metrics_of(120), 2000, Seconds(200), 79),
            "step 120/2000  loss 3.4123  grad 0.910  52.10 K tokens/s  ETA 3 m 20 s");
  EXPECT_EQ(progress_text(metrics_of(120), 2000, Seconds(200), 30), "step 120/2000  loss 3.4123");
  EXPECT_EQ(progress_text(metrics_of(120), 2000, Seconds(200), 3), "step 120/2000");
}

TEST(Progress, EstimateIgnoresPausesAndCountsValidations) {
  StepTimeEstimator pace;
  Seconds now{0};
  const auto step = [&](double seconds) { pace.step_ended(now += Seconds(seconds)); };
  step(100);  // the first step is a warm-up
  EXPECT_FALSE(pace.per_step());
  for (int i = 0; i < 100; ++i) step(i == 50 ? 3600 : 1);
  EXPECT_NEAR(pace.per_step()->value, 1, 1e-9);
  for (int i = 0; i < 100; ++i) step(i % 4 == 0 ? 5 : 1);
  EXPECT_NEAR(pace.per_step()->value, 2, 1e-9);
  for (int i = 0; i < 64; ++i) step(0.5);  // a faster plan is detected soon
  EXPECT_NEAR(pace.per_step()->value, 0.5, 1e-9);
}

TEST(Progress, LogGetsFirstLastAndPeriodicLines) {
  Log log;
  {
    StatusLine line(log.out, log.clock);
    TrainingProgress progress(line, 1000);
    for (int step = 1; step <= 1000; ++step) {
      log.time += Seconds(0.0625);
      progress.step_ended(metrics_of(step));
    }
  }
  const Lines lines = log.lines();  // 1000 steps in 62.5 s
  ASSERT_EQ(lines.size(), 9U);
  EXPECT_TRUE(starts_with(lines[0], "step 1/1000 "));
  EXPECT_TRUE(starts_with(lines[1], "step 161/1000 ")) << lines[1];
  EXPECT_TRUE(ends_with(lines[1], "ETA 52.4 s")) << lines[1];
  EXPECT_TRUE(starts_with(lines[7], "step 1000/1000 ")) << lines[7];
  EXPECT_EQ(lines[8], "");
  for (const std::string& shown : lines)
    for (const char c : shown) EXPECT_GE(c, ' ');
}

// The console line changes in place ten times a second; the log gets a line every ten seconds, and permanent
// lines.
TEST(Progress, ConsoleOutputIsAlsoLogged) {
  ::setenv("TERM", "xterm", 1);
  Screen screen(60);
  if (screen.out() == nullptr) GTEST_SKIP() << "this system has no pseudo-terminals";
  Log log;
  StatusLine line(screen.out(), log.clock);
  line.log_to(log.out);
  for (int tenth = 0; tenth < 250; ++tenth) {
    if (tenth == 150) line.print("the plan changes");
    line.show("step");
    log.time += Seconds(0.1);
  }
  line.log_to(nullptr);
  line.print("unlogged");
  const Lines lines = log.lines();
  ASSERT_EQ(lines.size(), 4U);
  for (const auto& [number, words] : {std::pair{0, " step"}, {1, " the plan changes"}, {2, " step"}})
    EXPECT_TRUE(ends_with(lines[static_cast<std::size_t>(number)], words))
        << lines[static_cast<std::size_t>(number)];
  EXPECT_NE(screen.take().find("unlogged"), std::string::npos);
}

TEST(Progress, InterruptedTrainingShowsLastStep) {
  Log log;
  StatusLine line(log.out, log.clock);
  {
    TrainingProgress progress(line, 1000);
    for (int step = 1; step <= 3; ++step) progress.step_ended(metrics_of(step));
    EXPECT_EQ(log.lines().size(), 2U);
  }
  EXPECT_TRUE(starts_with(log.lines().at(1), "step 3/1000 "));
}

TEST(Progress, LastValidationStaysVisible) {
  Log log;
  StatusLine line(log.out, log.clock);
  TrainingProgress progress(line, 3);
  progress.step_ended({.step = 1, .validation_loss = 2.5});
  progress.step_ended({.step = 2});
  progress.step_ended({.step = 3});
  EXPECT_NE(log.lines().at(1).find("validation 2.5000"), std::string::npos);
}

TEST(Progress, TerminalLineFitsAndIsRateLimited) {
  ::setenv("TERM", "xterm", 1);
  Screen screen(60);
  if (screen.out() == nullptr) GTEST_SKIP() << "this system has no pseudo-terminals";
  Seconds time{0};
  StatusLine line(screen.out(), [&] { return time; });
  StatusLineSink events(line);
  std::string written;
  {
    TrainingProgress progress(line, 1000);
    for (int step = 1; step <= 1000; ++step) {
      time += Seconds(1.0 / 256);
      progress.step_ended(metrics_of(step));
      if (step == 500) events.report(Warning{"disk \033[2Jalmost\nfull"});
      written += screen.take();
      for (const std::string& shown : Screen::lines(written)) ASSERT_LT(shown.size(), 60U) << shown;
    }
  }
  written += screen.take();
  EXPECT_EQ(Screen::lines(written), (Lines{"warning: disk ?[2Jalmost full",
                                           "step 1000/1000  loss 3.4123  grad 0.910  52.10 K tokens/s", ""}));
  const auto num_drawn = std::count(written.begin(), written.end(), '\033');
  EXPECT_GT(num_drawn, 30);
  EXPECT_LE(num_drawn, 1000 / 256 * 10 + 12);  // 3.9 s, the first, the last and the warning
}

TEST(Progress, EventsShareTheLine) {
  ::setenv("TERM", "xterm", 1);
  Screen screen(19);
  if (screen.out() == nullptr) GTEST_SKIP() << "this system has no pseudo-terminals";
  Seconds time{0};
  StatusLine line(screen.out(), [&] { return time; });
  StatusLineSink events(line);
  events.report(Progress{"reading", 0, 100, "bytes"});
  time += Seconds(1);
  events.report(
      Progress{"r\xc3\xa9"
               "ading",
               50, 100, "bytes"});
  std::string written = screen.take();
  EXPECT_EQ(Screen::lines(written), Lines{"r\xc3\xa9"
                                          "ading 50 B of 10"});
  events.report(Warning{"odd"});
  written += screen.take();
  EXPECT_EQ(Screen::lines(written), (Lines{"warning: odd",
                                           "r\xc3\xa9"
                                           "ading 50 B of 10"}));
  line.clear();
  written += screen.take();
  EXPECT_EQ(Screen::lines(written), (Lines{"warning: odd", ""}));
}

TEST(Progress, EventsAreLoggedAfterTenSeconds) {
  Log log;
  StatusLine line(log.out, log.clock);
  StatusLineSink events(line);
  for (int second = 0; second <= 25; ++second, log.time += Seconds(1))
    events.report(Progress{"tokenizing", second, 100, "documents"});
  EXPECT_EQ(log.lines(), (Lines{"tokenizing 10 documents of 100 documents (10 %), 1 documents/s",
                                "tokenizing 20 documents of 100 documents (20 %), 1 documents/s", ""}));
}

TEST(Progress, DumbTerminalBehavesLikeLog) {
  Screen screen(60);
  if (screen.out() == nullptr) GTEST_SKIP() << "this system has no pseudo-terminals";
  ::setenv("TERM", "dumb", 1);
  StatusLine line(screen.out());
  line.show_now("one");
  line.print("two");
  EXPECT_EQ(screen.take(), "one\r\ntwo\r\n");  // the terminal adds carriage returns
}

}  // namespace
}  // namespace optimus
