// Benchmarks the simulator. The time of a step hardly depends on the number of devices and is proportional to
// the slots of one pipeline. Prints one line per plan: building the simulator (compiling programs), one
// simulation, and instructions per second.
#include <fmt/format.h>

#include <chrono>

#include "cluster/standard.h"
#include "model/presets.h"
#include "simulate/simulate.h"

using namespace optimus;

namespace {

template <typename Work>
double best_seconds(int times, Work&& work) {
  double best = 1e9;
  for (int i = 0; i < times; ++i) {
    const auto begin_time = std::chrono::steady_clock::now();
    work();
    best =
        std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count());
  }
  return best;
}

// The number of instructions of one program per stage; the simulator evaluates only one device per stage.
double instructions_of(const Plan& plan, const ModelSpec& model) {
  double sum = 0;
  for (const Stage& stage : plan.pipelines.front().stages)
    sum += static_cast<double>(compile(plan, model, stage.devices.front()).instructions.size());
  return sum;
}

void measure(const char* model_name, int pp, int tp, int dp, std::int64_t microbatches, int zero,
             int chunks) {
  const ModelSpec model = *find_preset(model_name);
  UniformPlan shape{
      .pp = pp, .dp = dp, .chunks = chunks, .batch = dp * microbatches, .sequence_length = 2048};
  shape.strategy.tp = tp, shape.strategy.sequence_parallel = tp > 1, shape.strategy.zero = zero;
  shape.schedule = chunks > 1 ? Schedule::interleaved : Schedule::one_f_one_b;
  const Plan plan = uniform_plan(model, shape);
  const Cluster cluster{standard_cluster(fmt::format("h100x{}", pp * tp * dp))};
  const DeviceMap map = DeviceMap::identity(pp * tp * dp);
  const Setup setup{plan, model, cluster, map, optimus_software(), {}};
  const double build = best_seconds(5, [&] { StepSimulator simulator(setup); });
  const StepSimulator simulator(setup);
  const double run = best_seconds(5, [&] { (void)simulator.seconds(fitted_constants()); });
  const double whole = best_seconds(5, [&] { (void)StepSimulator(setup).run(fitted_constants()); });
  const double instructions = instructions_of(plan, model);
  fmt::print(
      "{:12} {:7} devices  pp{:<3} tp{} dp{:<4} {:4} micro-batches {} chunks zero{}:  build {:7.3f} ms  step "
      "{:7.3f} ms  "
      "with report {:7.3f} ms  {:6.1f} million instructions/s\n",
      model_name, pp * tp * dp, pp, tp, dp, microbatches, chunks, zero, build * 1e3, run * 1e3, whole * 1e3,
      instructions / (build + run) / 1e6);
}

}  // namespace

int main() {
  for (const int dp : {1, 8, 64, 512}) measure("gpt3-175b", 8, 8, dp, 64, 1, 1);
  measure("gpt3-175b", 8, 8, 8, 512, 1, 1);
  measure("gpt3-175b", 32, 8, 2, 128, 1, 1);
  measure("gpt3-175b", 8, 8, 8, 64, 1, 4);
  measure("llama3-405b", 16, 8, 4, 64, 1, 1);
  measure("llama3-405b", 16, 8, 780, 64, 1, 1);
  measure("llama3-70b", 1, 8, 64, 8, 3, 1);
  return 0;
}
