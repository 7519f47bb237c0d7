// Measured plans on mixed GPU types: a synthetic one is read, and the published ones, if present next to this
// repository, are predicted no worse than when the formulas were written.
#include "simulate/sailor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"

namespace optimus {
namespace {

// Two stages of 13 blocks, each on nodes with two GPUs of each type.
std::string synthetic_run(const std::string& first, const std::string& second, int tp = 2) {
  std::string layers;
  for (int stage = 0; stage < 2; ++stage) {
    layers += stage == 0 ? "[" : ",[";
    for (int i = 0; i < 13; ++i) layers += (i > 0 ? "," : "") + std::to_string(stage * 13 + i);
    layers += "]";
  }
  const std::string replicas =
      fmt::format("[[[[\"{}\", 2, \"z\"]], 2], [[[\"{}\", 2, \"z\"]], {}]]", first, second, tp);
  return fmt::format(
      "{{\"pipeline_list\": [{{\"layers_per_stage\": [{}], \"tmp_per_stage\": [{}, {}], \"dp\": [2, 2]}}], "
      "\"mbs\": 2, \"gbs\": 10, \"real\": 1.5, \"max_mem\": 1e9}}",
      layers, replicas, replicas);
}

TEST(MeasuredPlans, ReadsPlansWithGpuTypes) {
  const MeasuredPlanFile file = parse_measured_plan(synthetic_run("RTX-3090", "RTX-2080"), "m.json");
  EXPECT_TRUE(file.is_mixed);
  EXPECT_EQ(file.seconds, 1.5);
  EXPECT_EQ(file.run->model.layers, 24);
  const Plan& plan = file.run->plan;
  EXPECT_EQ(plan.pipelines[0].stages.size(), 2u);
  EXPECT_EQ(plan.pipelines[0].stages[1].devices, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(plan.pipelines[0].microbatches, (std::vector<int>{4, 4, 2}));
  EXPECT_EQ(file.run->cluster->type_of({2}).name, "rtx2080ti");
  EXPECT_EQ(file.run->cluster->num_nodes(), 4);
}

TEST(MeasuredPlans, SlowestReplicaDeterminesStepTime) {
  const auto seconds = [](const char* a, const char* b) {
    return parse_measured_plan(synthetic_run(a, b), "m.json").run->simulator->seconds(fitted_constants());
  };
  const double slow = seconds("RTX-2080", "RTX-2080");
  // Half of the nodes have a faster network; nothing else changes.
  for (const double mixed : {seconds("GH-96", "RTX-2080"), seconds("RTX-2080", "GH-96")}) {
    EXPECT_GT(mixed, 0.9 * slow);
    EXPECT_LE(mixed, slow);
  }
  EXPECT_LT(seconds("GH-96", "GH-96"), slow / 3);
}

TEST(MeasuredPlans, RefusesInvalidInput) {
  EXPECT_THROW(parse_measured_plan("", "m"), UserError);
  EXPECT_THROW(parse_measured_plan("{}", "m"), UserError);
  EXPECT_THROW(parse_measured_plan(synthetic_run("GH-97", "GH-96"), "m"), UserError);
  EXPECT_THROW(parse_measured_plan(synthetic_run("GH-96", "GH-96", 4), "m"), UserError);
  EXPECT_THROW(parse_measured_plan("{\"real\": 1, \"max_mem\": 1, \"pipeline_list\": []}", "m"), UserError);
}

TEST(MeasuredPlans, PublishedPlansArePredicted) {
  const char* named = std::getenv("OPTIMUS_SHARED");
  const Path shared = named != nullptr ? Path(named) : Path(OPTIMUS_SOURCE) / ".." / "shared";
  const Path folder = shared / "traces/sailor/measured_plans";
  if (std::error_code error; !std::filesystem::is_directory(folder, error))
    GTEST_SKIP() << folder << " does not exist: skipping published plans";
  double sum = 0;
  int number = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const MeasuredPlanFile file =
        parse_measured_plan(value_or_throw(read_file(entry.path(), Bytes(1 << 24))), entry.path().string());
    sum += std::abs(file.run->simulator->seconds(fitted_constants()) / file.seconds - 1), ++number;
  }
  ASSERT_GT(number, 0);
  EXPECT_LT(sum / number, 0.15);
}

}  // namespace
}  // namespace optimus
