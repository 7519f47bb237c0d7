#include "simulate/availability.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"

namespace optimus {
namespace {

TEST(Availability, ReadsAllFormats) {
  const AvailabilityTrace events = parse_trace("0,add,a\n0,add,b\n5000,remove,a\n", "t");
  EXPECT_EQ(events.num_nodes, 2);
  EXPECT_EQ(events.length, 5);
  const AvailabilityTrace counts = parse_trace("0,3\n2000,1\n9000,2\n", "t");
  const std::vector<NodeCount> steps = node_counts(counts);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[1].nodes, 1);
  EXPECT_EQ(steps[2].seconds, 9);
  const AvailabilityTrace clock = parse_trace("2020-12-31, 23:59:50, 4\n2021-01-01, 00:00:10, 2\n", "t");
  EXPECT_EQ(node_counts(clock)[1].seconds, 20);
}

TEST(Availability, RecognisesTimeUnits) {
  // One sample per line: milliseconds. Step functions, with the old and new number at each change: seconds,
  // or hours with a decimal point.
  EXPECT_EQ(parse_trace("0,4\n60000,4\n120000,3\n", "t").length, 120);
  EXPECT_EQ(parse_trace("0,0\n600,0\n600,4\n900,4\n900,2\n", "t").length, 900);
  EXPECT_EQ(parse_trace("0.000,0\n0.500,0\n0.500,4\n", "t").length, 1800);
  EXPECT_EQ(parse_trace("0.000,0\n0.500,0\n0.500,4\n", "t").form, "hours, number of nodes");
}

TEST(Availability, ReadsOneListPerLine) {
  const AvailabilityTrace trace = parse_trace(
      "[0, \"add\", {\"nodes\": [\"a\", \"b\"], \"duration\": 60000, \"plan\": [1, 2]}]\n"
      "[60000, \"no-op\", {\"nodes\": [], \"duration\": 60000}]\n"
      "[120000, \"remove\", {\"nodes\": [\"a\"], \"duration\": 60000}]\n",
      "t");
  EXPECT_EQ(trace.length, 180);
  EXPECT_EQ(node_counts(trace).back().nodes, 1);
  EXPECT_EQ(node_counts(trace).back().seconds, 120);
  EXPECT_THROW(parse_trace("[0, \"add\"]\n", "t"), UserError);
  EXPECT_THROW(parse_trace("[0, \"gone\", {\"nodes\": []}]\n", "t"), UserError);
}

TEST(Availability, ReadsSamplesDurationsAndFaults) {
  const AvailabilityTrace samples = parse_trace(
      "[{\"Time\": 0, \"GPUs\": 4}, {\"Time\": 63.0, \"GPUs\": 3}, {\"Time\": 126, \"GPUs\": 3}]", "t");
  EXPECT_EQ(samples.length, 126);
  EXPECT_EQ(node_counts(samples)[1].nodes, 3);
  const AvailabilityTrace durations = parse_trace(
      "[{\"time\": 35, \"size\": 16}, {\"time\": 10, \"size\": 8}, {\"time\": 0, \"size\": 0}]", "t");
  EXPECT_EQ(durations.length, 45 * 60);
  EXPECT_EQ(node_counts(durations)[1].seconds, 35 * 60);
  EXPECT_EQ(node_counts(durations)[1].nodes, 8);
  // Node b is down from the start; node a has two simultaneous faults and returns when both have ended.
  const auto fault = [](const char* node, double day, const char* what) {
    return fmt::format(
        "{{\"node_id\": \"{}\", \"event_time\": {}, \"event_type\": \"fault_{}\", \"fault_type\": {{}}}}",
        node, day, what);
  };
  const AvailabilityTrace faults =
      parse_trace("[" + fault("a", 1, "start") + "," + fault("a", 2, "start") + "," + fault("a", 3, "end") +
                      "," + fault("b", 4, "end") + "," + fault("a", 5, "end") + "]",
                  "t");
  const std::vector<NodeCount> counts = node_counts(faults);
  ASSERT_EQ(counts.size(), 4u);
  EXPECT_EQ(counts[0].nodes, 1);
  EXPECT_EQ(counts[1].seconds, 86400);
  EXPECT_EQ(counts[1].nodes, 0);
  EXPECT_EQ(counts[2].nodes, 1);
  EXPECT_EQ(counts[3].seconds, 5 * 86400);
  EXPECT_EQ(faults.num_nodes, 2);
}

// Published traces in a folder next to this repository; they are not copied here.
TEST(Availability, ReadsPublishedTraces) {
  const char* named = std::getenv("OPTIMUS_SHARED");
  const Path shared = named != nullptr ? Path(named) : Path(OPTIMUS_SOURCE) / ".." / "shared";
  const Path traces = shared / "traces";
  if (std::error_code error; !std::filesystem::is_directory(traces, error))
    GTEST_SKIP() << traces << " does not exist: skipping published traces";
  int read = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(traces)) {
    const std::string path = file.path().string(), name = file.path().filename().string();
    const auto is_in = [&](const char* part) { return path.find(part) != std::string::npos; };
    // Tables of measurements, plans, prices and links, not traces.
    if (!file.is_regular_file() || is_in("measured_plans") || is_in("gcp_") || is_in("para_config") ||
        is_in("SOURCES") || is_in("fault_statistics") || name == "costs.csv" || name == "throughput.csv" ||
        name == "reference_results.csv")
      continue;
    const std::string content = value_or_throw(read_file(file.path(), Bytes(1 << 26)));
    if (is_in("alibaba")) {
      EXPECT_THROW(parse_trace(content, path), UserError);
      continue;
    }
    const AvailabilityTrace trace = parse_trace(content, path);
    EXPECT_GT(trace.num_nodes, 0) << path;
    EXPECT_LT(trace.num_nodes, 1000) << path;
    const double hours = trace.length / 3600;
    EXPECT_LT(hours, is_in("infinitehbd") ? 400 * 24 : 100) << path << ": " << trace.form;
    const bool is_p3 = name == "p3-trace.csv" || name == "p3.csv" || name == "p3trace.csv";
    EXPECT_GT(hours, is_in("aws-spot") && hours > 0 ? 10 : -1) << path << ": " << trace.form;
    EXPECT_NEAR(hours, 11.4, is_p3 ? 0.1 : 1e9) << path << ": " << trace.form;
    EXPECT_NEAR(hours, 1, is_in("jsonl") ? 1e-9 : 1e9) << path;
    ++read;
  }
  EXPECT_GT(read, 0);
}

TEST(Availability, RefusesInvalidInput) {
  EXPECT_THROW(parse_trace("", "t"), UserError);
  EXPECT_THROW(parse_trace("0,add,a\n1,add,a\n", "t"), UserError);
  EXPECT_THROW(parse_trace("0,remove,a\n", "t"), UserError);
  EXPECT_THROW(parse_trace("5,add,a\n1,add,b\n", "t"), UserError);
  EXPECT_THROW(parse_trace("x,add,a\n", "t"), UserError);
  EXPECT_THROW(parse_trace("0,1e99\n", "t"), UserError);
  EXPECT_THROW(parse_trace("a,b,c,d\n", "t"), UserError);
}

TEST(Availability, FixedPlanLosesCurrentStep) {
  // Two nodes for 100 s; one is removed and returns at 150 s; the trace ends at 300 s.
  const AvailabilityTrace trace =
      parse_trace("0,add,a\n0,add,b\n100000,remove,b\n150000,add,b\n300000,add,c\n", "t");
  const Replay replay = replay_one_plan(
      trace, {.nodes_needed = 2, .step_seconds = 30, .tokens_per_step = 10, .restart_seconds = 5});
  // 95 s: 3 steps; 145 s: 4 steps. The oracle has 100 + 150 s.
  EXPECT_DOUBLE_EQ(replay.useful_tokens_per_second, 70.0 / 300);
  EXPECT_DOUBLE_EQ(replay.fraction_of_oracle, 210.0 / 250);
  EXPECT_EQ(replay.restarts, 2);
  EXPECT_EQ(replay.steps_lost, 2);
  EXPECT_DOUBLE_EQ(replay.seconds_lost, 40);
}

TEST(Availability, NeverExceedsOracle) {
  EXPECT_TRUE(rc::check([] {
    std::string text;
    double now = 0;
    const int lines = *rc::gen::inRange(1, 30);
    for (int i = 0; i < lines; ++i) {
      now += *rc::gen::inRange(0, 100000);
      text += std::to_string(static_cast<long>(now)) + "," +
              std::to_string(*rc::gen::inRange(i == 0 ? 1 : 0, 9)) + "\n";
    }
    const AvailabilityTrace trace = parse_trace(text, "random");
    const Replay replay =
        replay_one_plan(trace, {.nodes_needed = *rc::gen::inRange(1, 9),
                                .step_seconds = 1.0 + *rc::gen::inRange(0, 50),
                                .restart_seconds = static_cast<double>(*rc::gen::inRange(0, 60))});
    RC_ASSERT(replay.fraction_of_oracle >= 0 && replay.fraction_of_oracle <= 1);
    RC_ASSERT(replay.steps_lost <= replay.restarts);
  }));
}

}  // namespace
}  // namespace optimus
