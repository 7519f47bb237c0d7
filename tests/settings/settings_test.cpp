// Resolving the settings of a run: learning rates, the built-in text, chosen values and rejected ones.
#include "settings/settings.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "model/open.h"
#include "plan/plan_json.h"
#include "settings/choose_plan.h"
#include "settings/demo_text.h"

namespace optimus {
namespace {

TEST(LearningRate, WarmsUpThenDecays) {
  LearningRate rate{LearningRateShape::cosine, 1.0, 0.1, 10, 110};
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 1), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 5), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 10), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 60), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 110), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 500), 0.1);
  rate.shape = LearningRateShape::linear;
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 60), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 35), 0.775);
  rate.shape = LearningRateShape::wsd;  // falls over the last 22 steps
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 88), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 99), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 110), 0.1);
  rate.shape = LearningRateShape::constant;
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 110), 1.0);
  rate = {LearningRateShape::cosine, 1.0, 0.1, 0, 1};
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 1), 0.1);
}

TEST(DemoText, DropsOnlyLicenseComments) {
  EXPECT_EQ(without_license("// Copyright\n// GNU\n\n#include <a>\n"), "#include <a>\n");
  EXPECT_EQ(without_license("\n/* The License\n */\n// a remark\nint x;"), "// a remark\nint x;");
  EXPECT_EQ(without_license("// a remark\nint x;"), "// a remark\nint x;");
  EXPECT_EQ(without_license("/* Copyright, never closed"), "/* Copyright, never closed");
  EXPECT_EQ(without_license("// Copyright"), "");
  EXPECT_EQ(without_license(""), "");
}

class Settings : public testing::Test {
 protected:
  void SetUp() override {
    text_ =
        std::filesystem::temp_directory_path() / ("optimus-settings-" + std::to_string(::getpid()) + ".txt");
    std::ofstream file(text_);
    for (int i = 0; i < 400; ++i) file << "line " << i << " of the text\n";
  }
  void TearDown() override { std::filesystem::remove(text_); }
  TrainOptions options() const {
    TrainOptions result;
    result.model.model = "gpt2";
    result.model.overrides = {.layers = 2, .hidden = 32, .heads = 2};
    result.data = {text_.string()};
    result.sequence_length = 16;
    return result;
  }
  TrainSettings resolved(TrainOptions options) {
    NullSink events;
    return resolve(options, {}, nullptr, events);
  }
  Path text_;
};

// An asynchronous schedule is used only if the user requests it.
TEST_F(Settings, AsynchronousScheduleIsUsed) {
  TrainOptions some = options();
  some.model.model = "llama2-7b", some.model.overrides.layers = 4, some.model.overrides.kv_heads = 2;
  some.model.overrides.ffn = 64, some.batch = 8, some.devices = 2, some.layout.schedule = "pipedream";
  const TrainSettings settings = resolved(some);
  EXPECT_EQ(settings.plan.schedule, Schedule::pipedream);
  EXPECT_EQ(settings.plan.pipelines.front().stages.size(), 2u);
  some.layout.schedule = "pipehorse";
  EXPECT_THROW(resolved(some), UserError);
}

// A recompute mode given by the user also applies to plans that are chosen later.
TEST_F(Settings, RecomputeAppliesToLaterPlans) {
  TrainOptions some = options();
  some.recompute = "full", some.is_recompute_explicit = true, some.batch = 8, some.devices = 2;
  some.precision = "fp32";
  const auto recompute_of = [&](const Plan& plan) {
    return plan.pipelines.front().stages.front().chunks.front().runs.back().strategy.recompute;
  };
  const ModelSpec model = open_model("gpt2");
  const DeviceFacts device{.type = "cpu", .count = 2};
  EXPECT_EQ(recompute_of(choose_plan(planner_request(some, model, device))->plan), RecomputeMode::full);
  EXPECT_EQ(recompute_of(*plan_for_size(planner_request(some, model, device), 2)), RecomputeMode::full);
  some.is_recompute_explicit = false;
  EXPECT_EQ(recompute_of(choose_plan(planner_request(some, model, device))->plan), RecomputeMode::none);
}

// Workers on a processor share its memory, whatever the usual memory of their device type is.
TEST_F(Settings, WorkersShareProcessorMemory) {
  constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;
  DeviceFacts device{.type = "cpu", .count = 2, .memory = Bytes(48 * kGibibyte)};
  const auto each = [&](int size) { return default_machines(device, size).types.front().memory; };
  EXPECT_EQ(each(2), Bytes(24 * kGibibyte));
  EXPECT_EQ(each(4), Bytes(12 * kGibibyte));
  device.workers_per_processor = 2;  // of four; the others are on another machine
  EXPECT_EQ(each(4), Bytes(24 * kGibibyte));
  device.workers_per_processor.reset();

  // 0.72 billion parameters with 16 bytes of state each are 5.4 GiB on each of two: more than the usual 4.
  TrainOptions some = options();
  some.batch = 2, some.devices = 2, some.precision = "fp32";
  ModelSpec model = open_model("gpt2");
  model.layers = 96;
  EXPECT_EQ(num_devices(choose_plan(planner_request(some, model, device))->plan), 2);
  // More workers do not add memory, so the message suggests neither more workers nor offloading.
  device.memory = Bytes(kGibibyte);
  const Feasible<ChosenPlan> refused = choose_plan(planner_request(some, model, device));
  ASSERT_FALSE(refused) << "it fits";
  const std::string text = refused.error().why;
  EXPECT_NE(text.find("512.00 MiB is available"), std::string::npos) << text;
  EXPECT_EQ(text.find("more)"), std::string::npos) << text;
  EXPECT_EQ(text.find("--offload"), std::string::npos) << text;
}

// A GPU that is three quarters full with a run has space for another plan of that run.
TEST_F(Settings, MemoryOfPlanIsAvailableToNextPlan) {
  constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;
  const DeviceFacts gpu{.is_gpu = true, .type = "h100", .count = 8, .memory = Bytes(20 * kGibibyte)};
  EXPECT_EQ(with_memory_of_plan(gpu, Bytes(60 * kGibibyte), 8).memory_per_worker(16), Bytes(80 * kGibibyte));
  // 2 of 4 workers on this machine, where 6 GiB are free and each worker owns 1 GiB.
  const DeviceFacts machine{.type = "cpu", .count = 2, .memory = Bytes(6 * kGibibyte)};
  EXPECT_EQ(with_memory_of_plan(machine, Bytes(kGibibyte), 2).memory_per_worker(4), Bytes(4 * kGibibyte));
}

// Workers get the plan as a file, and a resumed run has every setting from its folder; a recompute mode that
// the user gave still counts as given.
TEST_F(Settings, RecomputeIsExplicitAlsoWithGivenPlan) {
  NullSink events;
  TrainOptions first = options();
  first.batch = 8, first.precision = "fp32";
  const Path plan = text_.string() + ".json";
  std::ofstream(plan) << plan_text(resolve(first, {}, nullptr, events).plan);
  const auto is_given = [&](const std::string& mode, Origin origin) {
    TrainOptions some = first;
    OptionTable table;
    declare(table, some);
    some.plan = plan, some.recompute = mode, table.find("recompute")->origin = origin;
    (void)resolve(some, {}, &table, events);
    return some.is_recompute_explicit;
  };
  EXPECT_TRUE(is_given("full", Origin::flag));
  EXPECT_TRUE(is_given("none", Origin::flag));
  EXPECT_FALSE(is_given("none", Origin::built_in));
  EXPECT_TRUE(is_given("full", Origin::run));
  EXPECT_FALSE(is_given("none", Origin::run)) << "every setting is saved with a run";
  std::filesystem::remove(plan);
}

TEST_F(Settings, ChoosesAndRecordsOpenOptions) {
  TrainOptions some = options();
  OptionTable table;
  declare(table, some);
  table.find("seq")->origin = Origin::flag;
  NullSink events;
  const TrainSettings settings = resolve(some, {}, &table, events);
  EXPECT_EQ(settings.model.vocab, 257);
  EXPECT_EQ(settings.steps, 1000);
  EXPECT_EQ(settings.learning_rate.warmup, 100);
  EXPECT_EQ(settings.plan.precision, Precision::fp32);
  EXPECT_TRUE(settings.validation.has_value());
  const std::string saved = table.resolved_toml();
  EXPECT_NE(saved.find("steps = 1000"), std::string::npos) << saved;
  EXPECT_EQ(table.find("lr")->origin, Origin::planner);
  EXPECT_EQ(table.find("seq")->origin, Origin::flag);
}

TEST_F(Settings, UsesAllUsableDevices) {
  const auto used = [&](DeviceFacts facts, TrainOptions some) {
    NullSink events;
    const TrainSettings settings = resolve(some, facts, nullptr, events);
    EXPECT_EQ(*some.devices, num_devices(settings.plan));
    EXPECT_EQ(settings.devices_note.empty(), *some.devices == facts.count) << settings.devices_note;
    return *some.devices;
  };
  TrainOptions some = options();
  some.batch = 8;
  EXPECT_EQ(used({.count = 1}, some), 1);
  EXPECT_EQ(used({.count = 2}, some), 2);
  EXPECT_EQ(used({.count = 5}, some), 5);
  // 2 heads and 8 sequences: more than 16 devices have no work.
  EXPECT_LE(used({.count = 64}, some), 16);
  EXPECT_GE(used({.count = 64}, some), 2);
  some.batch = 1;
  some.model.overrides.heads = 1;
  some.model.overrides.hidden = 16;
  EXPECT_EQ(used({.count = 3}, some), 1);
}

TEST_F(Settings, UsesRequestedDeviceCount) {
  NullSink events;
  TrainOptions some = options();
  some.batch = 8, some.devices = 1;
  TrainSettings settings = resolve(some, {.count = 4}, nullptr, events);
  EXPECT_EQ(num_devices(settings.plan), 1);
  EXPECT_EQ(settings.devices_note, "");
  some = options();
  some.batch = 8, some.devices = 3;
  EXPECT_EQ(num_devices(resolve(some, {.count = 1}, nullptr, events).plan), 3);
  // Constraints on the plan are not dropped to use more devices, and devices are not dropped to meet
  // constraints.
  some = options();
  some.batch = 8, some.layout.tp = Range{2, 2};
  settings = resolve(some, {.count = 2}, nullptr, events);
  EXPECT_EQ(strategy_of(settings.plan.pipelines[0].stages[0], 0).tp, 2);
  some = options();
  some.batch = 8, some.layout.tp = Range{2, 2};
  EXPECT_THROW(resolve(some, {.count = 1}, nullptr, events), UserError);
}

TEST_F(Settings, RejectsInvalidValuesByName) {
  const auto refuses = [&](auto change, const std::string& word) {
    TrainOptions some = options();
    change(some);
    try {
      resolved(some);
      ADD_FAILURE() << "accepted " << word;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  refuses([](TrainOptions& o) { o.batch = 0; }, "--batch");
  refuses([](TrainOptions& o) { o.steps = -3; }, "--steps");
  refuses([](TrainOptions& o) { o.precision = "fp7"; }, "fp7");
  refuses([](TrainOptions& o) { o.recompute = "some"; }, "some");
  refuses([](TrainOptions& o) { o.dropout = 1.0; }, "--dropout");
  refuses([](TrainOptions& o) { o.learning_rate = -1; }, "--lr");
  refuses([](TrainOptions& o) { o.microbatch = 9, o.batch = 8; }, "--microbatch");
  refuses([](TrainOptions& o) { o.sequence_length = 5000; }, "5000");
  refuses([](TrainOptions& o) { o.devices = 0; }, "--devices");
  refuses([](TrainOptions& o) { o.devices = 5000; }, "--devices");
  refuses([](TrainOptions& o) { o.data = {"/no/such/file"}; }, "/no/such/file");
  refuses([](TrainOptions& o) { o.model.model = "bert-base"; }, "mask");
}

}  // namespace
}  // namespace optimus
