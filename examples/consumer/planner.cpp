// Plans for a cluster and simulates the plan, without libtorch.
#include <optimus/plan.h>
#include <optimus/simulate.h>

#include <cstdio>

int main() {
  const optimus::PlanResult best =
      optimus::plan({.model = "llama3-8b", .cluster = "h100x64", .batch = 256, .seq = 8192});
  const optimus::SimulateResult step = optimus::simulate({.plan = best.plan, .cluster = "h100x64"});
  std::printf("%s: %.3f s predicted, %.3f s simulated\n", best.name.c_str(), best.predicted.step_seconds,
              step.predicted.step_seconds);
}
