// Profiles of ranks: they are read back as written, times are means over ranks and steps, and every lane has
// a track.
#include "report/profile_report.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "model/presets.h"
#include "simulate/instruction_name.h"

namespace optimus {
namespace {

// Two steps of 10 s: a forward of 2 s, an all-reduce of 4 s of which 1 s overlaps with the forward, and an
// update.
RankProfile made_up(int rank, double scale) {
  RankProfile profile;
  profile.rank = rank, profile.host = "a \"host\"", profile.device = "cpu";
  profile.memory = {Bytes(10), Bytes(20), Bytes(30), Bytes(40), Bytes(0), Bytes(100 + rank)};
  profile.resident = Bytes(1000);
  for (const double begin : {0.0, 10.0}) {
    profile.steps.push_back({static_cast<std::int64_t>(begin / 10) + 4, begin, begin + 10});
    profile.instructions.push_back({0, 0, Lane::compute, "forward layer 0 mlp, micro-batch 0",
                                    "forward layer mlp", begin, begin + 2 * scale});
    profile.instructions.push_back({0, 0, Lane::tensor, "all_reduce layer 0 mlp, micro-batch 0",
                                    "all_reduce layer mlp", begin + 1 * scale, begin + 5 * scale});
    profile.instructions.push_back(
        {0, 0, Lane::compute, "optimizer layer 0", "optimizer layer", begin + 5 * scale, begin + 6 * scale});
  }
  return profile;
}

TEST(ProfileReport, RoundTrips) {
  const RankProfile profile = made_up(3, 1.25);
  const Json json = Json::parse(profile_json(profile).dump());
  const RankProfile back = parse_rank_profile(json, "rank-3.json");
  EXPECT_EQ(profile_json(back).dump(), profile_json(profile).dump());
  EXPECT_EQ(back.instructions.size(), 6U);
  EXPECT_EQ(back.host, "a \"host\"");
  Json bad = json;
  bad["instructions"][0]["lane"] = "fast";
  EXPECT_THROW(parse_rank_profile(bad, "rank-3.json"), UserError);
  bad = json;
  bad.erase("memory_bytes");
  EXPECT_THROW(parse_rank_profile(bad, "rank-3.json"), UserError);
}

TEST(ProfileReport, TimesAreMeans) {
  const Plan plan = uniform_plan(*find_preset("gpt2"), {.dp = 2, .batch = 2, .sequence_length = 8});
  const std::vector<RankProfile> ranks = {made_up(0, 1), made_up(1, 1.5)};
  const std::vector<ComparedKind> kinds = compare_kinds(ranks, plan, std::nullopt);
  ASSERT_EQ(kinds.size(), 3U);
  EXPECT_EQ(kinds[0].kind, "forward layer mlp");
  EXPECT_DOUBLE_EQ(kinds[0].measured, (2 + 3) / 2.0);
  EXPECT_EQ(kinds[1].kind, "optimizer layer");
  EXPECT_EQ(kinds[2].lane, Lane::tensor);
  EXPECT_DOUBLE_EQ(kinds[2].measured, (4 + 6) / 2.0);
  EXPECT_FALSE(kinds[2].predicted);
  EXPECT_NEAR(*overlap(ranks[0]), 0.25, 1e-12);
  EXPECT_NE(comparison_text(ranks, plan, std::nullopt).find("memory of rank 1"), std::string::npos);
}

TEST(ProfileReport, ComparesWithPrediction) {
  const ModelSpec model = *find_preset("gpt2");
  UniformPlan shape{
      .dp = 2, .microbatch = 1, .batch = 2, .sequence_length = 64, .precision = Precision::fp32};
  const Plan plan = uniform_plan(model, shape);
  NullSink events;
  const std::optional<ExpectedStep> expected = expected_step("h100", true, plan, model, events);
  ASSERT_TRUE(expected);
  EXPECT_GT(expected->step.seconds, 0);
  std::set<std::string> kinds;
  for (const ComparedKind& one : compare_kinds({made_up(0, 1), made_up(1, 1)}, plan, expected)) {
    kinds.insert(one.kind);
    if (one.kind == "forward layer mlp") {
      EXPECT_TRUE(one.predicted && *one.predicted > 0);
    }
  }
  EXPECT_TRUE(kinds.contains("reduce_gradients layer"));
  const OrderedJson json = comparison_json({made_up(0, 1), made_up(1, 1)}, plan, expected);
  EXPECT_EQ(json["ranks"].size(), 2U);
  EXPECT_GT(json["ranks"][0]["memory_bytes"]["predicted"]["total"].get<std::int64_t>(), 0);
  EXPECT_GT(json["step_seconds"]["predicted"].get<double>(), 0);
}

TEST(ProfileReport, MessageKindsMatchPrediction) {
  const ModelSpec model = *find_preset("gpt2");
  const Plan plan = uniform_plan(model, {.pp = 2, .microbatch = 1, .batch = 2, .sequence_length = 64});
  NullSink events;
  const std::optional<ExpectedStep> expected = expected_step("h100", true, plan, model, events);
  ASSERT_TRUE(expected);
  std::set<std::string> predicted, programmed;
  for (const TracedInstruction& instruction : expected->instructions)
    if (instruction.lane == Lane::transfer) predicted.insert(instruction.kind);
  for (const Program& program : compile_all(plan, model))
    for (const Instruction& at : program.instructions)
      if (at.lane == Lane::transfer) programmed.insert(instruction_kind(at, model));
  EXPECT_EQ(predicted, (std::set<std::string>{"send", "send gradient"}));
  for (const std::string& kind : predicted) EXPECT_TRUE(programmed.contains(kind)) << kind;
}

TEST(ProfileReport, HasTrackPerRankAndLane) {
  const Json trace = Json::parse(profile_trace({made_up(0, 1), made_up(1, 1)}, {{"a", 1}}));
  EXPECT_EQ(trace.at("profile").at("a"), 1);
  std::set<std::string> processes, tracks;
  std::map<std::pair<int, int>, int> spans;
  for (const Json& event : trace.at("traceEvents")) {
    const int process = event.at("pid"), track = event.at("tid");
    if (event.at("ph") == "M" && event.at("name") == "process_name") processes.insert(event["args"]["name"]);
    if (event.at("ph") == "M" && event.at("name") == "thread_name") tracks.insert(event["args"]["name"]);
    if (event.at("ph") == "X") ++spans[{process, track}];
  }
  EXPECT_EQ(processes, (std::set<std::string>{"rank 0 (cpu on a \"host\")", "rank 1 (cpu on a \"host\")"}));
  EXPECT_EQ(tracks, (std::set<std::string>{"steps", "compute", "tensor"}));
  EXPECT_EQ(spans.size(), 6U);
  EXPECT_EQ((spans[{1, 1 + static_cast<int>(Lane::tensor)}]), 2);
}

}  // namespace
}  // namespace optimus
