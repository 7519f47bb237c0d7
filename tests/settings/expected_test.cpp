// The expected step time of a training, computed from measured kernels; the measurements are made up here.
#include "settings/expected.h"

#include <gtest/gtest.h>

#include "cluster/hardware_json.h"
#include "cluster/open.h"
#include "cluster/standard.h"
#include "model/presets.h"
#include "settings/choose_plan.h"

namespace optimus {
namespace {

class Warnings final : public EventSink {
 public:
  void report(const Event& event) override { count += std::holds_alternative<Warning>(event); }
  int count = 0;
};

DeviceType made_up(double rate) {
  DeviceType type = *find_device_type("cpu");
  KernelTimes& times = type.kernels.emplace_back();
  times.format = NumberFormat::fp32;
  for (const char* name : {"product", "product.add", "product.input", "product.weight"})
    times.tables[name] = {{{1}, {1}, {1}}, {rate}};
  return type;
}

TEST(Expected, FollowsMeasurements) {
  const ModelSpec model = *find_preset("gpt2");
  const auto seconds = [&](double rate, Precision precision) {
    return expected_step_seconds(
        made_up(rate),
        uniform_plan(model, {.microbatch = 1, .batch = 2, .sequence_length = 64, .precision = precision}),
        model);
  };
  ASSERT_TRUE(seconds(1e9, Precision::fp32));
  // At such a low rate GEMMs take nearly all of the time.
  EXPECT_NEAR(*seconds(1e9, Precision::fp32) / *seconds(2e9, Precision::fp32), 2, 0.1);
  EXPECT_FALSE(seconds(1e9, Precision::bf16));
}

// If this machine was measured, plans are chosen for it.
TEST(Expected, PlansUseMeasuredMachine) {
  const Path folder = Path(::testing::TempDir()) / "optimus-expected-plans";
  std::filesystem::remove_all(folder);
  ::setenv("XDG_CACHE_HOME", folder.c_str(), 1);
  TrainOptions options;
  options.devices = 2, options.batch = 8, options.sequence_length = 64, options.precision = "fp32";
  options.history = "none";
  const ModelSpec model = *find_preset("gpt2");
  const DeviceFacts device{.count = 2};
  const std::string usual = choose_plan(planner_request(options, model, device))->note;
  EXPECT_EQ(usual.find("measured on this machine"), std::string::npos) << usual;
  HardwareProfile profile = standard_cluster("cpux2");
  profile.types = {made_up(1e11)};
  RealFileSystem files;
  std::filesystem::create_directories(measured_cluster_path().parent_path());
  value_or_throw(write_atomically(files, measured_cluster_path(), to_json(profile).dump()));
  const std::string measured = choose_plan(planner_request(options, model, device))->note;
  EXPECT_NE(measured.find("measured on this machine"), std::string::npos) << measured;
  const std::string others = choose_plan(planner_request(options, model, DeviceFacts{.count = 1}))->note;
  EXPECT_EQ(others.find("measured on this machine"), std::string::npos) << "two machines: " << others;
  ::unsetenv("XDG_CACHE_HOME");
}

TEST(Expected, WorkersShareMeasuredProcessor) {
  const Path folder = Path(::testing::TempDir()) / "optimus-expected-parts";
  std::filesystem::remove_all(folder);
  ::setenv("XDG_CACHE_HOME", folder.c_str(), 1);
  EXPECT_THROW(open_cluster("herex2"), UserError);
  RealFileSystem files;
  std::filesystem::create_directories(measured_cluster_path().parent_path());
  HardwareProfile profile = standard_cluster("cpux1");
  profile.types = {made_up(1e9)};
  value_or_throw(write_atomically(files, measured_cluster_path(), to_json(profile).dump()));
  EXPECT_EQ(open_cluster("here").num_devices(), 1);
  const Cluster four = open_cluster("herex4");
  EXPECT_EQ(four.num_devices(), 4);
  const DeviceType &whole = profile.types[0], &part = four.profile().types[0];
  EXPECT_EQ(part.memory.value, whole.memory.value / 4);
  EXPECT_EQ(part.kernels.at(0).tables.at("product").rates.at(0),
            whole.kernels.at(0).tables.at("product").rates.at(0) / 4);
  for (const char* const wrong : {"herex0", "herex", "herex2x", "here2"})
    EXPECT_THROW(open_cluster(wrong), UserError);
  profile.types[0].name = "h200";
  value_or_throw(write_atomically(files, measured_cluster_path(), to_json(profile).dump()));
  EXPECT_EQ(open_cluster("herex1").num_devices(), 1);
  EXPECT_THROW(open_cluster("herex2"), UserError);  // only one GPU was measured
  ::unsetenv("XDG_CACHE_HOME");
}

TEST(Expected, WarnsAboutMalformedFile) {
  const Path folder = Path(::testing::TempDir()) / "optimus-expected";
  std::filesystem::remove_all(folder);
  ::setenv("XDG_CACHE_HOME", folder.c_str(), 1);
  Warnings events;
  EXPECT_FALSE(measured_type("cpu", events));
  EXPECT_EQ(events.count, 0);
  RealFileSystem files;
  std::filesystem::create_directories(measured_cluster_path().parent_path());
  HardwareProfile profile = standard_cluster("cpux1");
  profile.types = {made_up(1e9)};
  value_or_throw(write_atomically(files, measured_cluster_path(), to_json(profile).dump()));
  EXPECT_EQ(measured_type("cpu", events), profile.types[0]);
  EXPECT_FALSE(measured_type("h200", events));
  EXPECT_EQ(events.count, 0);
  value_or_throw(write_atomically(files, measured_cluster_path(), "{"));
  EXPECT_FALSE(measured_type("cpu", events));
  EXPECT_EQ(events.count, 1);
  ::unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace optimus
