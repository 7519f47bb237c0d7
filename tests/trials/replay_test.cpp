#include "trials/replay.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "simulate/csv.h"
#include "trials/shared_traces.h"

namespace optimus {
namespace {

ReplayCase published_case(const PublishedSystem& system, const AvailabilityTrace& trace,
                          StepCounting counting) {
  ReplayCase replay_case{.trace = trace, .throughput = system.throughput, .batch = system.batch};
  replay_case.reconfiguration = system.reconfiguration, replay_case.counting = counting;
  return replay_case;
}

// Compares all results of the authors' simulators, with and without the artefacts of their code.
TEST(Replay, ReproducesPublishedResults) {
  const PublishedTables tables = published_tables();
  const Path folder = data_folder() / "oobleck";
  const CsvTable results = parse_csv(content_of(folder / "reference_results.csv"), "reference_results.csv");
  ASSERT_EQ(results.rows.size(), 105u);
  for (std::size_t row = 0; row < results.rows.size(); ++row) {
    const std::string name = results.cell(row, "trace"), model = results.cell(row, "model");
    const AvailabilityTrace trace = read_trace(folder / name);
    const System system = parse_system(results.cell(row, "system"), "system");
    // Some of Bamboo's rules are not known, which affects the spot trace; all other results are printed with
    // four or five digits.
    const double tolerance = system == System::bamboo && name == "scale_p3-trace.csv" ? 0.007 : 2e-4;
    for (const StepCounting counting : {StepCounting::as_published, StepCounting::completed_only}) {
      const ReplayOutcome outcome = replay(system, published_case(tables.of(system, model), trace, counting));
      const char* column = counting == StepCounting::as_published ? "samples_per_s" : "without_artefacts";
      const double expected = std::stod(results.cell(row, column));
      EXPECT_NEAR(outcome.samples_per_second, expected, tolerance * expected)
          << name << " " << model << " " << text(system) << " " << column;
    }
  }
}

// All systems train at the speed of Oobleck's templates, and only completed steps count, so only policy and
// costs differ.
double goodput(System system, const PublishedTables& tables, const std::string& model,
               const AvailabilityTrace& trace, int repeats) {
  const PublishedSystem& speed = tables.of(System::oobleck, model);
  ReplayCase replay_case{.trace = trace, .throughput = speed.throughput, .batch = speed.batch};
  if (system != System::ours) replay_case.reconfiguration = tables.of(system, model).reconfiguration;
  replay_case.costs.join_bytes = replay_case.costs.loss_bytes =
      12 * published_parameters(model) / replay_case.reconfiguration.min_nodes;
  return mean_replay(system, replay_case, repeats).goodput;
}

TEST(Replay, OursExceedsOtherSystems) {
  const PublishedTables tables = published_tables();
  for (const char* name :
       {"5m.csv", "10m.csv", "30m.csv", "1h.csv", "3h.csv", "6h.csv", "scale_p3-trace.csv"}) {
    const AvailabilityTrace trace = read_trace(data_folder() / "oobleck" / name);
    for (const std::string& model : tables.models()) {
      constexpr int kRepeats = 32;
      const double own = goodput(System::ours, tables, model, trace, kRepeats);
      for (const System system : {System::oobleck, System::varuna, System::bamboo})
        EXPECT_GT(own, goodput(system, tables, model, trace, kRepeats))
            << name << " " << model << " " << text(system);
    }
  }
}

// No system exceeds the ideal, which loses nothing.
TEST(Replay, NoSystemExceedsIdeal) {
  EXPECT_TRUE(rc::check([] {
    std::string lines;
    std::vector<int> there;
    int next = 0;
    std::int64_t now = 0;
    const auto pick = [](int low, int high) {
      return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
    };
    for (int i = 0; i < 6; ++i) there.push_back(next), lines += fmt::format("0,add,n{}\n", next++);
    for (int i = 0; i < pick(0, 30); ++i) {
      now += pick(0, 200) * 1000;
      if (!there.empty() && pick(0, 1) == 0) {
        const auto which = static_cast<std::size_t>(pick(0, static_cast<int>(there.size()) - 1));
        lines += fmt::format("{},remove,n{}\n", now, there[which]);
        there.erase(there.begin() + static_cast<std::ptrdiff_t>(which));
      } else {
        there.push_back(next), lines += fmt::format("{},add,n{}\n", now, next++);
      }
    }
    lines += fmt::format("{},add,last\n", now + 1000);
    const AvailabilityTrace trace = parse_trace(lines, "t");
    ReplayCase replay_case{.trace = trace, .throughput = {2, {1, 1.8, 2.4, 2.2, 3}}, .batch = 30};
    replay_case.ready_seconds = pick(0, 40);
    replay_case.reconfiguration = {
        .reconfigure_seconds = 5, .reconfigure_by_nodes = {}, .checkpoint_seconds = 2};
    replay_case.reconfiguration.min_nodes = 2, replay_case.reconfiguration.stages = 2;
    const Ideal ideal = ideal_of(replay_case);
    for (const System system : {System::oobleck, System::varuna, System::bamboo, System::ours}) {
      const ReplayOutcome outcome = replay(system, replay_case);
      // Steps are truncated to whole milliseconds.
      RC_ASSERT(static_cast<double>(outcome.steps) * replay_case.batch <= ideal.samples * 1.001 + 1e-6);
      RC_ASSERT(outcome.useful_seconds <= ideal.seconds + 1e-6);
      RC_ASSERT(outcome.useful_seconds >= -1e-6);
      RC_ASSERT(outcome.steps >= 0);
    }
  }));
}

TEST(Replay, OursRedoesTheStepInFlight) {
  // Two nodes, steps of 10 s. One is lost at 95 s: nine steps are complete, and the other node redoes the
  // tenth in 20 s.
  const AvailabilityTrace trace = parse_trace("0,add,a\n0,add,b\n95000,remove,b\n200000,add,c\n", "t");
  ReplayCase replay_case{.trace = trace, .throughput = {1, {1, 2}}, .batch = 20};
  replay_case.ready_seconds = 0, replay_case.reconfiguration.min_nodes = 1;
  replay_case.costs = {.start_seconds = 0,
                       .detection_seconds = 1,
                       .recovery_seconds = 3,
                       .switch_seconds = 1,
                       .prepare_seconds = 0};
  const ReplayOutcome outcome = replay(System::ours, replay_case);
  EXPECT_EQ(outcome.steps, 9 + 5);  // from 99 s on; ends at 119, 139, 159, 179, 199
  EXPECT_EQ(outcome.steps_lost, 1);
  EXPECT_EQ(outcome.starts, 2);
  EXPECT_DOUBLE_EQ(outcome.useful_seconds, 90 + 100);
}

TEST(Replay, OursAdmitsNodeBetweenSteps) {
  const AvailabilityTrace trace = parse_trace("0,add,a\n105000,add,b\n200000,add,c\n", "t");
  ReplayCase replay_case{.trace = trace, .throughput = {1, {1, 2}}, .batch = 20};
  replay_case.ready_seconds = 0, replay_case.reconfiguration.min_nodes = 1;
  replay_case.costs = {.start_seconds = 0,
                       .detection_seconds = 1,
                       .recovery_seconds = 3,
                       .switch_seconds = 2,
                       .prepare_seconds = 4};
  const ReplayOutcome outcome = replay(System::ours, replay_case);
  // Ready at 109 s. The step ends at 120 s; from 122 s on steps take 10 s.
  EXPECT_EQ(outcome.steps, 6 + 7);
  EXPECT_EQ(outcome.steps_lost, 0);
}

TEST(Replay, GeneratesPeriodicFailures) {
  const AvailabilityTrace trace = periodic_failures(8, 15, 5, 3600);
  int removals = 0;
  for (const NodeEvent& event : trace.events) removals += !event.is_add;
  EXPECT_EQ(removals, 240);
  for (const NodeCount& count : node_counts(trace)) EXPECT_GE(count.nodes, 7);
}

TEST(Replay, RejectsInvalidTables) {
  const std::string speed = "system,model,nodes,samples_per_s\nours,m,2,1\nours,m,3,2\n";
  const std::string cost = "system,model,reconfigure_s,global_batch\nours,m,2,8\n";
  EXPECT_NO_THROW(PublishedTables::parse(speed, cost, "t", "c"));
  EXPECT_THROW(PublishedTables::parse(speed + "ours,m,5,2\n", cost, "t", "c"), UserError);  // 4 is missing
  EXPECT_THROW(PublishedTables::parse(speed + "ours,n,2,2\n", cost, "t", "c"), UserError);  // no costs
  EXPECT_THROW(PublishedTables::parse(speed, cost + "ours,k,2,8\n", "t", "c"), UserError);
  EXPECT_THROW(
      PublishedTables::parse(speed, "system,model,reconfigure_s,global_batch\nours,m,x,8\n", "t", "c"),
      UserError);
  EXPECT_THROW(parse_system("theirs", "--policy"), UserError);
}

TEST(Replay, ReadsRecoveryCosts) {
  RecoveryCosts costs;
  costs.detection_seconds = 0.25;
  EXPECT_EQ(parse_recovery_costs(to_json(costs).dump(), "f"), costs);
  const std::string head = "{\"format\": \"optimus-recovery-costs\", \"version\": 1";
  EXPECT_EQ(parse_recovery_costs(head + "}", "f"), RecoveryCosts{});
  EXPECT_EQ(parse_recovery_costs(head + "}", "f", costs), costs);
  EXPECT_THROW(parse_recovery_costs(head + ", \"detection\": 1}", "f"), UserError);
  EXPECT_THROW(parse_recovery_costs(head + ", \"detection_seconds\": -1}", "f"), UserError);
  EXPECT_THROW(parse_recovery_costs("{\"format\": \"x\", \"version\": 1}", "f"), UserError);
}

// Replays traces of every kind if they are available beside this repository.
TEST(Replay, ReplaysAllPublishedTraces) {
  if (std::error_code error; !std::filesystem::is_directory(shared_traces(), error))
    GTEST_SKIP() << shared_traces() << " does not exist: other traces are not replayed";
  for (const char* name : {"bamboo/p3-trace.csv", "parcae/p3trace.csv", "parcae/bert_trace_hh_55_65.jsonl",
                           "infinitehbd/fault_trace.json", "bamboo/v100x1-east1c.txt"}) {
    const Path path = shared_traces() / name;
    if (std::error_code error; !std::filesystem::exists(path, error)) continue;
    const AvailabilityTrace trace = read_trace(path);
    std::vector<double> speeds;
    for (int nodes = 4; nodes <= 32; ++nodes) speeds.push_back(nodes);
    // Steps of 15 s at most; of 15 min for traces of several months.
    ReplayCase replay_case{
        .trace = trace, .throughput = {4, speeds}, .batch = trace.length < 1e6 ? 480.0 : 28800.0};
    replay_case.reconfiguration = reconfiguration_costs_of(System::oobleck, 1e9),
    replay_case.reconfiguration.min_nodes = 4;
    const Ideal ideal = ideal_of(replay_case);
    EXPECT_GT(ideal.samples, 0) << name;
    const ReplayOutcome ours = replay(System::ours, replay_case),
                        oobleck = replay(System::oobleck, replay_case);
    EXPECT_GT(static_cast<double>(ours.steps), static_cast<double>(oobleck.steps)) << name;
    EXPECT_LE(static_cast<double>(ours.steps) * replay_case.batch, ideal.samples) << name;
  }
}

}  // namespace
}  // namespace optimus
