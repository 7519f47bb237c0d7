// The plan's file: round trips, hashes, errors, and names of enumerators.
#include "plan/plan_json.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/temporary_folder.h"
#include "plan/describe.h"
#include "plan/random_plan.h"

namespace optimus {
namespace {

TEST(PlanJson, RoundTrips) {
  EXPECT_TRUE(rc::check([] {
    const Plan plan = random_plan::plan_for(random_small_model());
    const Plan again = parse_plan(plan_text(plan), "x.json");
    RC_ASSERT(again == plan);
    RC_ASSERT(plan_hash(again) == plan_hash(plan));
    RC_ASSERT(difference(plan, again).empty());
    RC_ASSERT(!short_text(plan).empty() && !picture(plan).empty());
  }));
}

TEST(PlanJson, DifferentPlansHaveDifferentHashesAndTexts) {
  EXPECT_TRUE(rc::check([] {
    const ModelSpec model = random_small_model();
    const Plan a = random_plan::plan_for(model), b = random_plan::plan_for(model);
    RC_ASSERT((a == b) == (plan_hash(a) == plan_hash(b)));
    RC_ASSERT((a == b) == difference(a, b).empty());
  }));
}

TEST(PlanJson, IsSmallAndStable) {
  const Plan plan = uniform_plan(small_model(4, false), {.pp = 2,
                                                         .dp = 2,
                                                         .strategy = {.tp = 2, .zero = 1},
                                                         .microbatch = 1,
                                                         .batch = 7,
                                                         .sequence_length = 16});
  EXPECT_EQ(plan_text(plan), R"({
  "format": "optimus-plan",
  "version": 1,
  "model": "llama3-8b",
  "blocks": 6,
  "batch": 7,
  "sequence_length": 16,
  "schedule": "1f1b",
  "precision": "bf16",
  "accumulators": "fp32",
  "pipelines": [
    {
      "microbatches": [
        {
          "count": 3,
          "sequences": 2
        },
        {
          "count": 1,
          "sequences": 1
        }
      ],
      "stages": [
        {
          "devices": "0..3",
          "layers": [
            {
              "blocks": "0..2",
              "tp": 2,
              "zero": 1
            }
          ]
        },
        {
          "devices": "4..7",
          "layers": [
            {
              "blocks": "3..5",
              "tp": 2,
              "zero": 1
            }
          ]
        }
      ]
    }
  ]
}
)");
  // The hash is written to logs and compared between machines: changing it changes the format.
  EXPECT_EQ(plan_hash(plan), plan_hash(parse_plan(plan_text(plan), "x")));
  EXPECT_EQ(short_text(plan), "pp2 tp2 dp2 zero1 1f1b");
}

TEST(PlanJson, ErrorsNameFileAndPosition) {
  const std::string good = plan_text(uniform_plan(small_model(2, false), {.batch = 2, .sequence_length = 8}));
  const auto refuse = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return message_of([&] { parse_plan(text, "p.json"); });
  };
  EXPECT_EQ(refuse("\"version\": 1", "\"version\": 2"),
            "p.json: unsupported version 2; this program reads version 1");
  EXPECT_EQ(refuse("\"schedule\": \"1f1b\"", "\"schedule\": \"1f1\""),
            "p.json: schedule: '1f1' is not one of gpipe, 1f1b, interleaved, zero-bubble, pipedream, "
            "pipemare; did you mean '1f1b'?");
  EXPECT_EQ(refuse("\"batch\"", "\"bach\""), "p.json: unknown key 'bach'; did you mean 'batch'?");
  EXPECT_EQ(refuse("\"devices\": \"0\"", "\"devices\": \"0..9999999\""),
            "p.json: pipelines[0].stages[0].devices: '0..9999999' has more than 1000000 numbers");
  EXPECT_EQ(
      refuse("\"devices\": \"0\"", "\"devices\": \"3..1\""),
      "p.json: pipelines[0].stages[0].devices: expected numbers and ranges such as 0..7,12, got '3..1'");
  EXPECT_EQ(refuse("\"blocks\": \"0..3\"", "\"blocks\": \"0,2,3\""),
            "p.json: pipelines[0].stages[0].layers[0].blocks: expected one range of consecutive blocks, such "
            "as 0..7, got '\"0,2,3\"'");
  EXPECT_EQ(refuse("\"batch\": 2", "\"batch\": 3"),
            "p.json: the micro-batches: expected 3 sequences in total (the batch), got 2");
  EXPECT_EQ(refuse("optimus-plan", "other"), "p.json: format: expected \"optimus-plan\", got '\"other\"'");
}

TEST(Describe, ListsDifferences) {
  const ModelSpec model = small_model(4, false);
  const Plan a = uniform_plan(model, {.pp = 2, .dp = 2, .batch = 8, .sequence_length = 16});
  const Plan b =
      uniform_plan(model, {.pp = 1, .dp = 2, .strategy = {.tp = 2}, .batch = 8, .sequence_length = 16});
  const std::vector<std::string> changes = difference(a, b);
  ASSERT_EQ(changes.size(), 4u);
  EXPECT_EQ(changes[0], "layout: pp2 dp2 1f1b → tp2 dp2");
  EXPECT_EQ(changes[1], "pipeline 0: 2 stages → 1 stages");
  EXPECT_EQ(changes[2], "pipeline 0, stage 0 devices: 0..1 → 0..3");
  EXPECT_EQ(changes[3],
            "pipeline 0, stage 0: embedding, layers 0–1 (dp2) → embedding, layers 0–3, head (tp2 dp2)");
}

}  // namespace
}  // namespace optimus
