// Benchmarks plans, layouts and programs by cluster size: 405B parameters on 64 to 100,000 devices.
//
// usage: bench_plan. Prints the best of five runs; docs/understand/architecture.md quotes the results.
#include <fmt/format.h>

#include <chrono>

#include "model/presets.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "plan/validate.h"
#include "schedule/program.h"

namespace optimus {
namespace {

template <typename Work>
double best_milliseconds(Work work) {
  double best = 1e300;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(
        best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

void measure(const ModelSpec& model, const Plan& plan);

// One pipeline with pp16 tp8 and data parallelism inside the stages.
void measure_one_pipeline(const ModelSpec& model, int devices) {
  const int tp = 8, pp = devices >= 128 ? 16 : 8, dp = devices / (tp * pp);
  const LayerStrategy strategy{.tp = tp, .sequence_parallel = true, .zero = 1};
  const Plan plan = uniform_plan(
      model,
      {.pp = pp, .dp = dp, .strategy = strategy, .microbatch = 1, .batch = 16 * dp, .sequence_length = 8192});
  measure(model, plan);
}

// As many equal pipelines as fit, each of 16 stages with 16 devices.
void measure_many_pipelines(const ModelSpec& model, int devices) {
  const LayerStrategy strategy{.tp = 8, .sequence_parallel = true, .zero = 1};
  Plan plan =
      uniform_plan(model, {.pp = 16, .dp = 2, .strategy = strategy, .batch = 32, .sequence_length = 8192});
  const Pipeline first = plan.pipelines.front();
  for (int copy = 1; copy < devices / 256; ++copy) {
    Pipeline next = first;
    for (Stage& stage : next.stages)
      for (int& device : stage.devices) device += copy * 256;
    plan.pipelines.push_back(std::move(next));
    plan.batch += 32;
  }
  measure(model, plan);
}

void measure(const ModelSpec& model, const Plan& plan) {
  const int device = num_devices(plan) / 2;
  const double valid = best_milliseconds([&] { ensure(!find_problem(plan, model), "the plan is valid"); });
  const double layout_ms = best_milliseconds([&] { (void)layout_of(plan, model, StateKind::optimizer); });
  const Layout layout = layout_of(plan, model, StateKind::optimizer);
  const double boxes_ms = best_milliseconds([&] { (void)boxes_of(layout, RankIndex(layout), Rank{device}); });
  std::size_t instructions = 0;
  const double program =
      best_milliseconds([&] { instructions = compile(plan, model, device).instructions.size(); });
  const std::string text = plan_text(plan);
  const double json = best_milliseconds([&] { (void)parse_plan(text, "plan"); });
  fmt::print("{:8} {:>10.2f} {:>10.2f} {:>16.2f} {:>12.2f} {:>8} {:>11.2f} {:>9}\n", num_devices(plan), valid,
             layout_ms, boxes_ms, program, instructions, json, text.size());
}

}  // namespace
}  // namespace optimus

int main() {
  using namespace optimus;
  const ModelSpec model = *find_preset("llama3-405b");
  fmt::print("llama3-405b, pp16 tp8 sp zero1, milliseconds\n");
  fmt::print("{:>8} {:>10} {:>10} {:>16} {:>12} {:>8} {:>11} {:>9}\n", "devices", "validity", "layout",
             "validation", "one program", "(length)", "parse JSON", "(bytes)");
  for (const int devices : {64, 256, 1024, 4096, 16384, 65536, 99968}) measure_one_pipeline(model, devices);
  fmt::print("the same with pipelines of 256 devices\n");
  for (const int devices : {256, 1024, 4096, 16384, 65536, 99968}) measure_many_pipelines(model, devices);
}
