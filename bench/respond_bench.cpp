// Benchmarks the responses to a condition: their computation time and the resulting plans. With HOURS, also
// evaluates the policies on timelines with slow machines and lost nodes at published rates.
//
//   bench_respond DEVICES [HOURS [SEED [ERROR]]]     ERROR: of predictions
//
// The model is llama3-8b on H100s, with a batch of 2,048 sequences of 4,096 tokens.
#include <fmt/format.h>

#include <cstdlib>
#include <ctime>

#include "cluster/standard.h"
#include "model/presets.h"
#include "plan/describe.h"
#include "trials/timeline_trial.h"

using namespace optimus;

namespace {

double seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void show(const char* name, const Demand& demand, const Plan& plan, const std::vector<Condition>& conditions,
          const ResponseLimits& limits) {
  const double begin = seconds();
  const std::vector<PlannedOption> options = value_or_throw(responses(demand, plan, conditions, {}, limits));
  fmt::print("{}: {:.2f} s\n", name, seconds() - begin);
  for (const PlannedOption& one : options)
    fmt::print("  {:<20} {:>9.4f} s now, {:>9.4f} s usually, {} devices, pause {:.2f} s: {}\n",
               text(one.option.response), one.option.step_seconds, one.option.usual_seconds,
               one.option.devices, one.option.pause_seconds, short_text(one.plan));
}

void try_policies(const Demand& demand, const Plan& plan, const ResponseLimits& limits, double hours,
                  std::uint64_t seed, double error) {
  constexpr double kInfiniteHbd = 1.0 / 2434;  // faults per node and hour
  const ConditionTimeline line =
      random_timeline(demand.cluster, hours * 3600, {.loss_per_hour = kInfiniteHbd}, seed);
  ResponseTimer timed{.clock = seconds};
  TrialCase trial = trial_of(line, demand, plan, {}, limits, &timed);
  trial.prediction_error = error;
  const double best = hindsight(trial).useful_steps;
  fmt::print("{} conditions and {} losses in {} h, {} plans considered, at most {:.2f} s per decision\n",
             line.conditions.size(), line.losses.size(), hours, trial.modes.size(), timed.max_seconds);
  for (const std::string& word : policy_words()) {
    const TrialOutcome outcome = run_trial(parse_policy(word, "policy"), trial);
    fmt::print("  {:<12} {:>6.2f} % of the oracle, {} switches, {} steps lost\n", word,
               100 * outcome.useful_steps / best, outcome.switches, outcome.steps_lost);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int devices = argc > 1 ? std::atoi(argv[1]) : 1024;
  const ModelSpec model = *find_preset("llama3-8b");
  const Cluster cluster(standard_cluster(fmt::format("h100x{}", devices)));
  Demand demand{model, cluster, optimus_software(), fitted_constants()};
  demand.batch = 2048, demand.sequence_length = 4096;
  const double begin = seconds();
  const SearchResult start = search(demand, ClusterView(cluster));
  fmt::print("{} devices, batch {}: {} takes {:.4f} s per step; search took {:.2f} s\n", devices,
             demand.batch, short_text(start.plan), start.step.seconds, seconds() - begin);
  ResponseLimits limits;
  for (const Alternative& other : start.alternatives)
    if (other.peak_memory.fits()) limits.known_plans.push_back(other.plan);
  show("device 5, 1.5x", demand, start.plan, {{Cause::device, 5, 1.5}}, limits);
  show("network of node 1, 3x", demand, start.plan, {{Cause::link, 1, 3}}, limits);
  if (argc > 2)
    try_policies(demand, start.plan, limits, std::atof(argv[2]),
                 argc > 3 ? static_cast<std::uint64_t>(std::atoll(argv[3])) : 1,
                 argc > 4 ? std::atof(argv[4]) : 0.05);
}
