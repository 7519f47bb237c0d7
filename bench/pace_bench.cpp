// Compares predicted and measured step times of plans with more devices than this machine has cores. Devices
// are paced: every compute instruction does its real work on a small model and takes at least its configured
// time. Waits and bubbles of a schedule are therefore real while the CPUs are mostly idle. The CPU
// utilization is printed; above 80 % the results are meaningless.
//
//   bench_pace            twenty plans, and the bubbles of their stages
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

#include "comm/thread_comm.h"
#include "engine/engine.h"
#include "model/open.h"
#include "plan/describe.h"
#include "schedule/execute.h"

namespace optimus {
namespace {

constexpr std::int64_t kLength = 16;
constexpr int kWarmup = 1, kSteps = 3;

// The configured time: half a layer takes one unit forward and one unit for each gradient; the ends take half
// of that.
Seconds configured_time(const ModelSpec& model, const Instruction& instruction, int cp) {
  constexpr double kUnit = 0.012;
  if (instruction.lane != Lane::compute || instruction.op == Op::optimizer) return Seconds(0);
  if (block_kind(model, instruction.block) != BlockKind::layer) return Seconds(kUnit / 2);
  if (instruction.part == Part::attention_ring_step) return Seconds(kUnit / cp / 2);
  if (instruction.part == Part::attention_input || instruction.part == Part::attention_output)
    return Seconds(kUnit / 4);
  return Seconds(kUnit);
}

std::vector<Sample> samples_of(std::int64_t count) {
  std::vector<Sample> data(static_cast<std::size_t>(count));
  for (Sample& sample : data) {
    for (std::int32_t i = 0; i < kLength; ++i)
      sample.inputs.push_back(i), sample.targets.push_back(i + 1), sample.positions.push_back(i);
    sample.num_targets = kLength;
  }
  return data;
}

struct Measured {
  double seconds = 0, cpu_utilization = 0;  // step time; CPU utilization as a fraction of all cores
};

Measured run(const ModelSpec& model, const Plan& plan, int cp) {
  const int size = num_devices(plan);
  ThreadWorld world(size);
  std::vector<double> seconds;
  std::clock_t cpu_began = 0, cpu_ended = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank, comm = std::shared_ptr<Comm>(world.comm(rank))] {
      Parameters parameters(plan, model, rank, at::kCPU);
      parameters.initialize(1);
      EngineOptions options;
      options.rank = rank, options.comm = comm.get();
      options.min_duration = [&](const Instruction& instruction) {
        return configured_time(model, instruction, cp);
      };
      Engine engine(plan, model, parameters, options);
      throw_if_failed(comm->connect(0, engine.groups(), Deadline::after(Seconds(60), "connecting")));
      const Batch batch = make_batch(samples_of(plan.batch), plan, 0, 0, rank);
      for (int step = 0; step < kWarmup + kSteps; ++step) {
        const auto begin_time = std::chrono::steady_clock::now();
        if (rank == 0 && step == kWarmup) cpu_began = std::clock();
        value_or_throw(engine.train_step(batch, {.learning_rate = 1e-4}));
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin_time;
        if (rank == 0 && step >= kWarmup) seconds.push_back(took.count());
      }
      if (rank == 0) cpu_ended = std::clock();
    });
  for (std::thread& thread : threads) thread.join();
  double all = 0;
  for (const double one : seconds) all += one;
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], static_cast<double>(cpu_ended - cpu_began) / CLOCKS_PER_SEC / all /
                                           std::thread::hardware_concurrency()};
}

struct Case {
  int pp, tp = 1, cp = 1, dp = 1, chunks = 1, batch = 8;
  Schedule schedule = Schedule::one_f_one_b;
  RecomputeMode recompute = RecomputeMode::none;
  int zero = 0;
};

Plan plan_of(const ModelSpec& model, const Case& one) {
  UniformPlan shape{.pp = one.pp, .dp = one.dp, .chunks = one.chunks, .microbatch = 1, .batch = one.batch};
  shape.sequence_length = kLength, shape.precision = Precision::fp32, shape.schedule = one.schedule;
  shape.strategy.tp = one.tp, shape.strategy.cp = one.cp, shape.strategy.recompute = one.recompute;
  shape.strategy.zero = one.zero;
  return uniform_plan(model, shape);
}

// Compute takes its configured time; messages and collectives take no time.
double predicted(const ModelSpec& model, const Plan& plan, int cp) {
  const auto timeline =
      execute(compile_all(plan, model), [&](const Program&, const Instruction& instruction) {
        return configured_time(model, instruction, cp).value;
      });
  ensure(timeline.has_value(), "{}", timeline ? "" : timeline.error().why);
  return timeline->length;
}

// The fraction of the step in which the devices of stage 0 do not compute.
double bubble(const ModelSpec& model, const Plan& plan, double seconds) {
  double busy = 0;
  for (const Instruction& at : compile(plan, model, 0).instructions)
    busy += configured_time(model, at, 1).value;
  return 1 - busy / seconds;
}

void compare_all() {
  const ModelSpec model = with_overrides(
      open_model("gpt2"),
      {.layers = 8, .hidden = 16, .heads = 4, .head_dim = 4, .ffn = 32, .vocab = 40, .max_positions = 16});
  using enum Schedule;
  const std::vector<Case> cases = {
      {2, 1, 1, 1, 1, 8, gpipe},
      {2, 1, 1, 1, 1, 8, one_f_one_b},
      {2, 1, 1, 1, 2, 8, interleaved},
      {2, 1, 1, 1, 1, 8, zero_bubble},
      {4, 1, 1, 1, 1, 8, gpipe},
      {4, 1, 1, 1, 1, 8, one_f_one_b},
      {4, 1, 1, 1, 2, 8, interleaved},
      {4, 1, 1, 1, 1, 8, zero_bubble},
      {8, 1, 1, 1, 1, 16, one_f_one_b},
      {8, 1, 1, 1, 1, 16, zero_bubble},
      {3, 1, 1, 1, 1, 7, one_f_one_b},
      {5, 1, 1, 1, 1, 9, one_f_one_b},
      {4, 2, 1, 1, 1, 8, one_f_one_b},
      {2, 2, 1, 2, 1, 8, one_f_one_b},
      {2, 1, 2, 1, 1, 4, one_f_one_b},
      {1, 1, 4, 1, 1, 2, one_f_one_b},
      {1, 2, 1, 4, 1, 8, one_f_one_b, RecomputeMode::none, 1},
      {1, 1, 1, 8, 1, 16, one_f_one_b, RecomputeMode::none, 3},
      {4, 1, 1, 2, 1, 16, one_f_one_b, RecomputeMode::full, 1},
      {4, 2, 1, 2, 1, 16, one_f_one_b},
  };
  fmt::print("{:<34} {:>9} {:>9} {:>7} {:>16} {:>7}\n", "plan", "predicted", "measured", "error",
             "bubble, measured", "CPU");
  double worst = 0, sum = 0;
  for (const Case& one : cases) {
    const Plan plan = plan_of(model, one);
    const double expected = predicted(model, plan, one.cp);
    const Measured measured = run(model, plan, one.cp);
    const double error = measured.seconds / expected - 1;
    worst = std::max(worst, std::abs(error)), sum += std::abs(error);
    fmt::print("{:<34} {:>6.1f} ms {:>6.1f} ms {:>6.1f}% {:>7.1f}% {:>6.1f}% {:>6.0f}%\n", short_text(plan),
               1e3 * expected, 1e3 * measured.seconds, 100 * error,
               one.cp > 1 ? 0 : 100 * bubble(model, plan, expected),
               one.cp > 1 ? 0 : 100 * bubble(model, plan, measured.seconds), 100 * measured.cpu_utilization);
    std::fflush(stdout);
  }
  fmt::print("{} plans, mean error {:.1f}%, worst {:.1f}%\n", cases.size(),
             100 * sum / static_cast<double>(cases.size()), 100 * worst);
}

}  // namespace
}  // namespace optimus

int main() { optimus::compare_all(); }
