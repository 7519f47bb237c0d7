// decisions.jsonl: decisions survive a round trip, later gains are assigned to their switch, invalid lines
// cause one clear message.
#include "observe/decisions.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/error.h"

namespace optimus {
namespace {

Decision chosen() {
  Decision one{.step = 412, .kind = "switch", .evidence = "slow link 1–3: 9.10x since step 397"};
  one.from = "624e12", one.to = "37d712", one.from_name = "pp4", one.to_name = "pp2 tp2";
  one.epoch = 1, one.cause = "link", one.predicted_gain = 0.38;
  one.pause = Seconds(0.036), one.moved = Bytes(2048), one.minimum = Bytes(1024);
  one.alternatives = {{"pp2 tp2", "recut", 0.31}, {"dp4", "replan", std::nullopt}};
  return one;
}

std::string refusal_of(const std::string& content) {
  try {
    (void)parse_decisions(content, "d.jsonl");
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Decisions, SurviveRoundTrip) {
  rc::check([] {
    Decision one{.step = *rc::gen::inRange<std::int64_t>(0, 1'000'000), .kind = "switch"};
    // Of arbitrary bytes only valid text: invalid bytes are replaced (below).
    const auto word = rc::gen::container<std::string>(rc::gen::inRange<char>(1, 127));
    one.evidence = *word, one.from = *word, one.to = *word, one.cause = *word;
    one.from_name = *word, one.to_name = *word;
    one.num_workers = *rc::gen::inRange(0, 100), one.steps_lost = *rc::gen::inRange(0, 100);
    one.payback_steps = *rc::gen::inRange(0, 100) / 8.0,
    one.step_seconds = Seconds(*rc::gen::inRange(0, 9) / 4.0);
    one.epoch = *rc::gen::inRange(0, 100);
    if (*rc::gen::arbitrary<bool>()) one.predicted_gain = *rc::gen::inRange(-100, 100) / 64.0;
    one.pause = Seconds(*rc::gen::inRange(0, 1000) / 7.0), one.moved = Bytes(*rc::gen::inRange(0, 1 << 30));
    for (int i = *rc::gen::inRange(0, 3); i > 0; --i)
      one.findings.push_back({*word, *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 1 << 20)),
                              *rc::gen::inRange(8, 80) / 8.0, *rc::gen::inRange<std::int64_t>(0, 1 << 30)});
    for (int i = *rc::gen::inRange(0, 17); i > 0; --i)
      one.alternatives.push_back({*word, *word, *rc::gen::inRange(-9, 9) / 3.0});
    const std::string line = decision_line(one);
    RC_ASSERT(line.find('\n') == std::string::npos);
    RC_ASSERT(parse_decisions(line + "\n", "d") == std::vector{one});
  });
}

TEST(Decisions, LinesAreShortValidText) {
  Decision one = chosen();
  one.alternatives.resize(5000, {"pp2", "recut", 0.1});
  one.evidence = "host \xff";
  const std::vector<Decision> read = parse_decisions(decision_line(one) + "\n", "d");
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0].alternatives.size(), 16U);
  EXPECT_EQ(read[0].evidence, "host \xef\xbf\xbd");
}

TEST(Decisions, AssignsMeasuredGainToItsSwitch) {
  Decision other{.step = 500, .kind = "recover", .evidence = "lost rank 3", .epoch = 2};
  Decision again = chosen();
  again.step = 600, again.epoch = 3;
  const std::string content = decision_line(chosen()) + "\n" + decision_line(MeasuredGain{440, 1, 0.35}) +
                              "\n" + decision_line(other) + "\n" + decision_line(MeasuredGain{520, 2, 0.5}) +
                              "\n" + decision_line(again) + "\n" +
                              decision_line(MeasuredGain{700, 3, HUGE_VAL}) + "\n" +
                              R"({"step":701,"kind":"swi)";  // being written
  const std::vector<Decision> read = parse_decisions(content, "d");
  ASSERT_EQ(read.size(), 3U);
  EXPECT_EQ(read[0].measured_gain, 0.35);
  EXPECT_EQ(read[1].measured_gain, std::nullopt);  // not a switch
  EXPECT_EQ(read[2].measured_gain, std::nullopt);  // not finite
  // The same epoch number twice: the newer switch gets the gain.
  const std::string twice = decision_line(chosen()) + "\n" + decision_line(chosen()) + "\n" +
                            decision_line(MeasuredGain{440, 1, -0.1}) + "\n";
  EXPECT_EQ(parse_decisions(twice, "d")[0].measured_gain, std::nullopt);
  EXPECT_EQ(parse_decisions(twice, "d")[1].measured_gain, -0.1);
}

TEST(Decisions, FormatsAsOneLine) {
  Decision one = chosen();
  one.payback_steps = 8.2, one.prepare = Seconds(0.21), one.step_seconds = Seconds(0.09);
  one.measured_gain = 0.351;
  EXPECT_EQ(
      text(one),
      "step 412: slow link 1–3: 9.10x since step 397; switching pp4 → pp2 tp2 (expected +38 %, break-even "
      "after 9 steps); plan 624e → 37d7, prepared 210.0 ms, paused 36.0 ms (0.4 steps), moved 2.00 KiB "
      "(minimum 1.00 KiB); measured +35 %; alternatives: pp2 tp2 (recut) +31 %, dp4 (replan)");
  Decision scripted{.step = 10, .kind = "switch", .evidence = "scripted", .from = "624e12", .to = "37d712"};
  EXPECT_EQ(text(scripted),
            "step 10: scripted; switching plan 624e → plan 37d7; plan 624e → 37d7, prepared 0.0 us, paused "
            "0.0 us, moved 0 B (minimum 0 B)");
  Decision lost{.step = 13, .kind = "recover", .evidence = "lost rank 0\x1b[2J\n"};
  lost.from_name = "dp4", lost.to_name = "dp3", lost.num_workers = 3, lost.steps_lost = 2;
  EXPECT_EQ(text(lost),
            "step 13: lost rank 0 [2J ; continuing with 3 workers on dp3 (was dp4); paused 0.0 us, moved 0 B "
            "(minimum 0 B), 2 steps lost");
  Decision stays{.step = 61, .kind = "stay", .evidence = "slow link 1–3: 2.10x since step 45; nothing pays"};
  stays.from_name = "pp4", stays.alternatives = {{"pp2 tp2", "another plan", 0.01}};
  EXPECT_EQ(text(stays),
            "step 61: slow link 1–3: 2.10x since step 45; nothing pays; keeping pp4; alternatives: pp2 tp2 "
            "(another plan) +1 %");
  Decision phase = scripted;
  phase.evidence = "phase: batch 4 → 8", phase.from_name = phase.to_name = "dp4";
  EXPECT_TRUE(text(phase).starts_with("step 10: phase: batch 4 → 8; keeping layout dp4; plan 624e → 37d7, "));
  Decision huge = chosen();
  huge.payback_steps = 1e300;
  EXPECT_NE(text(huge).find("break-even after 9007199254740992 steps"), std::string::npos) << text(huge);
  EXPECT_EQ(text(MeasuredGain{430, 2, 0.351, 0.38}),
            "step 430: measured gain of plan epoch 2: +35 % (expected +38 %)");
}

TEST(Decisions, RejectsInvalidLinesWithLineNumber) {
  const std::string good = decision_line(chosen()) + "\n";
  EXPECT_EQ(refusal_of(good), "accepted");
  EXPECT_NE(refusal_of(good + "{}\n").find("d.jsonl line 2"), std::string::npos);
  EXPECT_NE(refusal_of("[1]\n").find("line 1"), std::string::npos);
  EXPECT_NE(refusal_of(R"({"step":-1,"kind":"switch"})" + std::string("\n")).find("step"), std::string::npos);
  EXPECT_NE(refusal_of(R"({"step":1,"kind":"switch","pause_seconds":-2})" + std::string("\n")).find("pause"),
            std::string::npos);
  EXPECT_NE(refusal_of(std::string(70'000, ' ') + "\n").find("at most 65536"), std::string::npos);
}

}  // namespace
}  // namespace optimus
