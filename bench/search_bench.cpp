// Benchmarks planning: search time by number of devices, and the ratio of bounds to simulated times.
//
//   bench_search                             search times for several models and clusters
//   bench_search RUNS.csv                    the planner's choice among the layouts of published sweeps
//   bench_search MODEL CLUSTER BATCH SEQ     one demand, with the bounds of all simulated candidates
#include <fmt/format.h>

#include <chrono>

#include "base/file.h"
#include "cluster/open.h"
#include "model/presets.h"
#include "plan/describe.h"
#include "search/refine.h"
#include "search/search.h"
#include "simulate/runs.h"

#include "search/fitted_plan.h"

using namespace optimus;

namespace {

template <typename Work>
double seconds_for(Work&& work) {
  const auto begin_time = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count();
}

void measure(const std::string& model_name, const std::string& cluster_name, std::int64_t batch,
             std::int64_t length) {
  const ModelSpec model = *find_preset(model_name);
  const Cluster cluster = open_cluster(cluster_name);
  Demand demand{model, cluster, optimus_software(), fitted_constants()};
  demand.batch = batch, demand.sequence_length = length;
  const ClusterView cluster_view(cluster);
  SearchResult result;
  const double seconds = seconds_for([&] { result = search(demand, cluster_view); });
  fmt::print(
      "{:12} {:24} batch {:6}:  {:7.3f} s  {:8} candidates  {:4} simulated  gap {:.4f}  step {:8.3f} s  {}\n",
      model_name, cluster_name, batch, seconds, result.num_candidates, result.num_simulated, result.gap,
      result.step.seconds, short_text(result.plan));
}

void show_bounds(const std::string& model_name, const std::string& cluster_name, std::int64_t batch,
                 std::int64_t length) {
  const ModelSpec model = *find_preset(model_name);
  const Cluster cluster = open_cluster(cluster_name);
  Demand demand{model, cluster, optimus_software(), fitted_constants()};
  demand.batch = batch, demand.sequence_length = length;
  const ClusterView cluster_view(cluster);
  BoundModel bound_model(demand, cluster_view);
  GridResult grid;
  const double seconds = seconds_for([&] { grid = search_grid(demand, cluster_view, bound_model, {}); });
  for (const EvaluatedCandidate& one : grid.evaluated) {
    const Bound bound = bound_model.bound(one.candidate), any = bound_model.bound_any_schedule(one.candidate);
    fmt::print("{:9.4f} s  bound {:.4f} {:.4f}  shape {:.4f}  mb{} {}{} {}\n", one.seconds,
               bound_model.tighten_bound(one.candidate, bound) / one.seconds, bound.seconds / one.seconds,
               any.seconds / one.seconds, one.candidate.microbatch, text(one.candidate.recompute),
               one.candidate.is_fitted ? " fitted" : "",
               short_text(grid_plan(demand, bound_model, one.candidate)));
  }
  fmt::print("{:.3f} s, {} candidates, {} simulated, {} cost samples, gap {:.4f}\n", seconds,
             grid.num_candidates, grid.num_simulated, bound_model.num_sample_costs(), grid.gap);
}

// Compares predictions with sweeps of published runs: whether the layout that is predicted to be best is
// close to the best measured one. Runs of a sweep are compared by tokens per second and device.
void show_sweeps(const std::string& path) {
  const std::string text = value_or_throw(read_file(path, Bytes(std::int64_t{64} << 20)));
  std::map<std::string, std::vector<std::pair<double, double>>> sweeps;  // predicted, measured
  for (const Run& run : read_runs(parse_csv(text, path))) {
    if (!run.run || run.measured.sweep.empty() || run.measured.seconds <= 0) continue;
    const RunCase& one = *run.run;
    const double tokens = static_cast<double>(one.plan.batch) *
                          static_cast<double>(one.plan.sequence_length) / num_devices(one.plan);
    sweeps[run.measured.sweep].emplace_back(tokens / one.simulator->seconds(fitted_constants()),
                                            tokens / run.measured.seconds);
  }
  int good = 0, number = 0;
  for (const auto& [name, runs] : sweeps) {
    if (runs.size() < 2) continue;
    const auto chosen = std::max_element(runs.begin(), runs.end());
    const auto best = std::max_element(runs.begin(), runs.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    const double loss = 1 - chosen->second / best->second;
    ++number, good += loss <= 0.03;
    fmt::print("{:40} {:3} layouts  the chosen layout is {:.1f} % below the best measured one\n", name,
               runs.size(), loss * 100);
  }
  fmt::print("within 3 % in {} of {} sweeps\n", good, number);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2) {
    show_sweeps(argv[1]);
    return 0;
  }
  if (argc == 5) {
    show_bounds(argv[1], argv[2], std::stoll(argv[3]), std::stoll(argv[4]));
    return 0;
  }
  for (const int devices : {256, 512, 1024, 4096, 16384, 100000})
    measure("llama3-405b", fmt::format("h100x{}", devices), devices > 16384 ? 12800 : 2048, 8192);
  for (const int devices : {16, 64, 512, 4096, 16384})
    measure("llama3-70b", fmt::format("h100x{}", devices), 1024, 8192);
  measure("gpt3-175b", "a100x1024", 1536, 2048);
  measure("llama3-8b", "h100x16+a100x16+v100x32", 512, 4096);
  measure("llama3-70b", "h100x128+a100x128+v100x256", 1024, 4096);
  return 0;
}
