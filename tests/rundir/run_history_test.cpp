// The history as trainings use it: a run's folder is read at its end, and an invalid file does no harm.
#include "rundir/run_history.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/temporary_folder.h"
#include "cluster/standard.h"
#include "cost/history_json.h"
#include "model/presets.h"
#include "model/tensors.h"
#include "observe/metrics.h"
#include "trials/simulated_run.h"

namespace optimus {
namespace {

class Lines final : public EventSink {
 public:
  void report(const Event& event) override {
    if (const Warning* warning = std::get_if<Warning>(&event)) all.push_back(warning->text);
  }
  std::vector<std::string> all;
};

class RunHistory : public testing::Test {
 protected:
  RunHistory() {
    plan_ = uniform_plan(model_, {.dp = 2, .microbatch = 1, .batch = 8, .sequence_length = 256});
    history_ = (folder_.path() / "sub" / "history.json").string();
  }

  // Forty steps of a second each on devices that take 1.4 times the predicted time, and ten steps of an
  // earlier plan, which do not count.
  void write_run() {
    std::ofstream metrics(folder_.path() / "metrics.jsonl"), seen(folder_.path() / "observations.jsonl");
    SimulatedRun run(plan_, model_, standard_cluster("h100x2"), Noise{}, 3);
    run.set({{Cause::device, 0, 1.4}, {Cause::device, 1, 1.4}});
    for (int step = 1; step <= 50; ++step) {
      StepMetrics one;
      one.step = step, one.seconds = Seconds(1), one.epoch = step <= 10 ? 0 : 1;
      metrics << metrics_line(one) << '\n';
      Observation now = run.next();
      now.step = step;
      if (step <= 10) now.rates[1].seconds *= 50;
      seen << to_json(now).dump() << '\n';
    }
    seen << "{\"cut off";
  }

  bool record_it(std::int64_t now = 1000) {
    return record_run(history_, {folder_.path(), plan_, model_, "h100", now}, lines_);
  }

  const ModelSpec model_ = *find_preset("gpt2");
  TemporaryFolder folder_;
  Plan plan_;
  std::string history_;
  Lines lines_;
};

TEST_F(RunHistory, RecordsRunFromItsFolder) {
  write_run();
  EXPECT_TRUE(load_history(history_, lines_).runs.empty());
  EXPECT_TRUE(record_it(1000));
  EXPECT_TRUE(record_it(2000));
  const History known = load_history(history_, lines_);
  ASSERT_EQ(known.runs.size(), 2u);
  const PastRun& run = known.runs.front();
  EXPECT_EQ(run.end_time, 1000);
  EXPECT_EQ(run.devices, 2);
  EXPECT_EQ(run.parameters, num_parameters(model_));
  EXPECT_DOUBLE_EQ(run.step_seconds, 1);
  EXPECT_EQ(run.strategy.dp, 2);
  const double factor = factor_of(residuals(known), ResidualKind::layers, "h100");
  EXPECT_GT(factor, 1.25);  // two runs, shrunk towards 1 by a tenth
  EXPECT_LT(factor, 1.45);
  EXPECT_TRUE(lines_.all.empty()) << lines_.all.front();
}

TEST_F(RunHistory, DoesNotReadOrOverwriteForeignFiles) {
  write_run();
  std::filesystem::create_directories(Path(history_).parent_path());
  const std::string foreign = "{\"format\": \"something else\"}";
  std::ofstream(history_) << foreign;
  EXPECT_TRUE(load_history(history_, lines_).runs.empty());
  EXPECT_FALSE(record_it());
  ASSERT_EQ(lines_.all.size(), 2u);
  for (const std::string& line : lines_.all) {
    EXPECT_NE(line.find("history.json"), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  }
  EXPECT_EQ(value_or_throw(read_file(history_)), foreign);
}

TEST_F(RunHistory, IgnoresRunsWithoutRecords) {
  EXPECT_FALSE(record_it());  // no metrics: one line
  EXPECT_EQ(lines_.all.size(), 1u);
  write_run();
  history_ = "none";
  EXPECT_FALSE(record_it());
  EXPECT_FALSE(std::filesystem::exists("none"));
  EXPECT_TRUE(load_history("none", lines_).runs.empty());
}

}  // namespace
}  // namespace optimus
