// Evaluates every policy on data that no training has used: the last 40 % of the traces, random trials with
// other numbers, and timelines of conditions with the planner's responses, on 8, 64, 1,024 and 16,384
// devices.
//
//   bench_policy TRACES [NAME=FILE…] [--json FILE]
//       TRACES: a folder with bamboo/, oobleck/, infinitehbd/, sailor/, tenplex/
//       NAME=FILE: additional learned policies
//
// Values are fractions of the oracle's useful steps with 95 % confidence intervals (bootstrap over cases).
// `bound` has full knowledge of the trial but pays the same costs as policies. docs/results/learned-policy.md
// has the tables.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <list>

#include "base/text.h"
#include "cluster/open.h"
#include "model/presets.h"
#include "model/tensors.h"
#include "policy/learned_policy.h"
#include "recovery/templates.h"
#include "trials/environment.h"
#include "trials/random_stream.h"
#include "trials/timeline_trial.h"
#include "trials/trial_values.h"

using namespace optimus;

namespace {

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Size {
  int devices, per_node;
  const char *model, *cluster;
  std::int64_t batch;
};
constexpr Size kSizes[] = {{8, 1, "gpt3-1.3b", "v100x8", 256},
                           {64, 2, "gpt3-6.7b", "v100x64", 1024},
                           {1024, 32, "llama3-8b", "h100x1024", 2048},
                           {16384, 512, "llama3-70b", "h100x16384", 4096}};

struct Case {
  std::string family;
  int devices = 0;  // 0: random
  TrialCase trial;
};

struct Contender {
  std::string name;
  Policy policy;
  bool is_bound = false;
};

// [contender][case]
using Fractions = std::vector<std::vector<double>>;

double fraction_of(const Contender& contender, const TrialCase& trial_case) {
  const double best = std::max(1e-9, hindsight(trial_case).useful_steps);
  if (!contender.is_bound) return run_trial(contender.policy, trial_case).useful_steps / best;
  const TrialValues values(trial_case);
  const Decider oracle_decider = [&](const Situation&, const TrialPoint& point) {
    const std::vector<double> worth = values.values_of_options(point);
    const auto most = std::max_element(worth.begin(), worth.end());
    return Choice{*most > worth.front() + 1e-9 ? static_cast<std::size_t>(most - worth.begin()) : 0, 0, {}};
  };
  return run_trial(oracle_decider, trial_case).useful_steps / best;
}

// The trace restricted to evenly chosen nodes, so that at most `nodes` are present at once.
AvailabilityTrace with_at_most(const AvailabilityTrace& trace, int nodes) {
  int peak = 1;
  for (const NodeCount& count : node_counts(trace)) peak = std::max(peak, count.nodes);
  AvailabilityTrace result = trace;
  if (peak <= nodes) return result;
  std::erase_if(result.events, [&](const NodeEvent& event) {
    return static_cast<std::int64_t>(event.node + 1) * nodes / peak ==
           static_cast<std::int64_t>(event.node) * nodes / peak;
  });
  return result;
}

struct TraceFile {
  const char *family, *name;
};
constexpr TraceFile kTraces[] = {{"spot", "bamboo/p3-trace.csv"},
                                 {"spot", "bamboo/v100x1-east1c.txt"},
                                 {"spot", "oobleck/scale_p3-trace.csv"},
                                 {"shrink", "oobleck/5m.csv"},
                                 {"shrink", "oobleck/10m.csv"},
                                 {"shrink", "oobleck/30m.csv"},
                                 {"shrink", "oobleck/1h.csv"},
                                 {"shrink", "oobleck/6h.csv"},
                                 {"faults", "infinitehbd/fault_trace.json"},
                                 {"resize", "sailor/a100_trace_16.json"},
                                 {"resize", "sailor/a100_trace_original.json"},
                                 {"resize", "tenplex/dynamic_resources_schedule.json"}};
constexpr int kErrorDraws = 6;  // draws of prediction errors for each trace

Throughput speeds_of(const Size& size, double& parameters) {
  const ModelSpec model = *find_preset(size.model);
  const Cluster cluster = open_cluster(size.cluster);
  Demand demand{model, cluster, optimus_software(), fitted_constants()};
  demand.batch = size.batch, demand.sequence_length = 2048;
  const int nodes = size.devices / size.per_node;
  const PipelineTemplates templates = value_or_throw(PipelineTemplates::build(
      demand, {.devices_per_node = size.per_node, .max_nodes = nodes, .failures = 1}));
  Throughput result{.min_nodes = templates.smallest(), .samples_per_second = {}};
  for (int n = templates.smallest(); n <= nodes; ++n)
    result.samples_per_second.push_back(static_cast<double>(size.batch) / templates.seconds(n));
  parameters = static_cast<double>(num_parameters(model)) / templates.smallest();
  return result;
}

void add_traces(const Path& folder, const Size& size, std::vector<Case>& cases) {
  double parameters = 0;
  const Throughput throughput = speeds_of(size, parameters);
  for (const TraceFile& file : kTraces) {
    const Path path = folder / file.name;
    const AvailabilityTrace whole =
        parse_trace(value_or_throw(read_file(path, Bytes(1 << 26))), path.string());
    const AvailabilityTrace trace =
        with_at_most(piece_of(whole, 0.6 * whole.length, whole.length), size.devices / size.per_node);
    ReplayCase replay{.trace = trace, .throughput = throughput, .batch = static_cast<double>(size.batch)};
    replay.costs.join_bytes = 12 * parameters, replay.ready_seconds = 0;
    replay.costs.link_bytes_per_second *= std::max(1, size.per_node / 8);  // one link per eight devices
    replay.costs.loss_bytes = throughput.min_nodes > 1 ? 12 * parameters : 0;
    const TrialCase trial = trial_of(replay, size.per_node);
    for (int error = 0; error < kErrorDraws; ++error) {
      cases.push_back({file.family, size.devices, trial});
      cases.back().trial.seed = static_cast<std::uint64_t>(100 + error);
      if (std::string(file.family) == "resize") continue;
      const auto number = static_cast<std::uint64_t>(9'000'000'000'000 + std::ssize(cases));
      cases.push_back({"mixed", size.devices, with_slow_machines(cases.back().trial, number)});
    }
  }
}

void add_conditions(const Size& size, std::vector<Case>& cases) {
  const ModelSpec model = *find_preset(size.model);
  const Cluster cluster = open_cluster(size.cluster);
  Demand demand{model, cluster, optimus_software(), fitted_constants()};
  demand.batch = size.batch, demand.sequence_length = 2048;
  const SearchResult start = search(demand, ClusterView(cluster));
  // Without a search per condition, which would take seconds: known plans, work sharing, new cuts, and
  // dropping devices.
  ResponseLimits limits{.max_searched_devices = 0};
  for (const Alternative& other : start.alternatives)
    if (other.peak_memory.fits()) limits.known_plans.push_back(other.plan);
  // Published rates, but at least about ten conditions in twelve hours on small clusters.
  const double more = std::max(1.0, 256.0 / size.devices);
  const ConditionRates usual,
      rates{usual.device_per_hour * more, usual.host_per_hour * more, usual.link_per_hour * more};
  for (std::uint64_t seed = 901; seed <= 902; ++seed) {
    const double hours = size.devices > 4096 ? 2 : 12;
    const TrialCase trial =
        trial_of(random_timeline(cluster, hours * 3600, rates, seed), demand, start.plan, {}, limits);
    for (int error = 0; error < 2 * kErrorDraws; ++error) {
      cases.push_back({"slow", size.devices, trial});
      cases.back().trial.seed = static_cast<std::uint64_t>(100 + error);
    }
  }
}

void add_random_trials(int count, std::vector<Case>& cases) {
  for (const TrialFamily family : kTrialFamilies)
    for (int i = 0; i < count; ++i)
      cases.push_back(
          {text(family), 0, random_trial(family, 7'000'000'000'000ULL + static_cast<std::uint64_t>(i))});
}

// Half of the nodes leave and return after every two pauses, which costs a policy most that follows each
// change at once.
void add_oscillation(std::vector<Case>& cases) {
  for (std::uint64_t i = 0; i < 20; ++i) {
    TrialCase trial_case = random_trial(TrialFamily::resize, 8'000'000'000'000ULL + i);
    const double every = 2 * trial_case.modes.front().pause_seconds + 20;
    const TrialSegment whole = trial_case.segments.front();
    trial_case.segments.clear();
    for (int k = 0; k < 400; ++k) {
      TrialSegment segment = whole;
      segment.begin = k * every, segment.end = (k + 1) * every, segment.is_loss = k % 2 == 1;
      if (k % 2 == 1)
        for (std::size_t m = trial_case.modes.size() / 2; m < trial_case.modes.size(); ++m)
          segment.step_seconds[m] = 0;
      trial_case.segments.push_back(segment);
    }
    cases.push_back({"oscillation", 0, trial_case});
  }
}

Fractions measure(const std::vector<Contender>& contenders, const std::vector<Case>& cases) {
  Fractions result;
  for (const Contender& contender : contenders) {
    double hours = 0;
    const double begin = cpu_seconds();
    result.emplace_back();
    for (const Case& one : cases) {
      result.back().push_back(fraction_of(contender, one.trial));
      hours += one.trial.segments.back().end / 3600;
    }
    if (contender.name == "learned")
      fmt::print("(learned: {:.0f} simulated hours per second of one core)\n",
                 hours / (cpu_seconds() - begin));
  }
  return result;
}

std::pair<double, double> interval(const std::vector<double>& values) {
  RandomStream draw(RandomKey(1).derive("bootstrap"));
  std::vector<double> means;
  for (int i = 0; i < 400; ++i) {
    double sum = 0;
    for (std::size_t k = 0; k < values.size(); ++k) sum += values[draw.below(values.size())];
    means.push_back(100 * sum / static_cast<double>(values.size()));
  }
  std::sort(means.begin(), means.end());
  return {means[10], means[389]};
}

// Prints one column for each key that `key_of` returns, and one for all.
template <typename Key>
Json show(const std::string& title, const std::vector<Contender>& contenders, const std::vector<Case>& cases,
          const Fractions& fractions, Key key_of) {
  std::vector<std::string> keys;
  for (const Case& one : cases)
    if (std::find(keys.begin(), keys.end(), key_of(one)) == keys.end()) keys.push_back(key_of(one));
  std::vector<std::string> header = {title};
  for (const std::string& key : keys) header.push_back(key);
  header.insert(header.end(), {"all", "95 %"});
  TextTable table(header);
  Json result;
  for (std::size_t contender = 0; contender < contenders.size(); ++contender) {
    std::vector<std::string> row = {contenders[contender].name};
    std::vector<double> all;
    for (const std::string& key : keys) {
      double sum = 0, count = 0;
      for (std::size_t i = 0; i < cases.size(); ++i)
        if (key_of(cases[i]) == key) sum += fractions[contender][i], ++count;
      row.push_back(fmt::format("{:.2f}", 100 * sum / count)), all.push_back(sum / count);
      result[contenders[contender].name][key] = 100 * sum / count;
    }
    double mean = 0;
    for (const double one : all) mean += one / static_cast<double>(all.size());
    const auto [low, high] = interval(fractions[contender]);
    row.insert(row.end(), {fmt::format("{:.2f}", 100 * mean), fmt::format("{:.2f}–{:.2f}", low, high)});
    result[contenders[contender].name]["all"] = 100 * mean,
    result[contenders[contender].name]["95 %"] = {low, high};
    table.row(row);
  }
  fmt::print("\n{}", table.text());
  std::fflush(stdout);
  return result;
}

Json show_model_errors(const std::vector<Contender>& contenders, const std::vector<Case>& cases) {
  struct ModelError {
    const char* name;
    double step_factor, pause, permanent = 0;
  };
  std::vector<Case> all;
  for (const ModelError& model_error :
       {ModelError{"told 2x", 2, 1}, ModelError{"told 1/2", 0.5, 1}, ModelError{"pause told 5x", 1, 5},
        ModelError{"pause told 1/5", 1, 0.2},
        // Hardware without fitted constants: every plan has its own permanent prediction error of 30 %.
        ModelError{"new device", 1, 1, 0.3}})
    for (std::size_t i = 0; i < cases.size(); i += 3) {
      all.push_back({model_error.name, 0, cases[i].trial});
      all.back().trial.prediction_bias = model_error.step_factor,
      all.back().trial.pause_prediction_bias = model_error.pause;
      all.back().trial.permanent_error = std::max(all.back().trial.permanent_error, model_error.permanent);
    }
  add_oscillation(all);
  return show("wrong model", contenders, all, measure(contenders, all),
              [](const Case& one) { return one.family; });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return fmt::print("usage: bench_policy TRACES [NAME=FILE…] [--json FILE]\n"), 2;
  std::vector<Contender> contenders;
  for (const std::string& word : policy_words())
    if (word != "oracle") contenders.push_back({word, parse_policy(word, "policy")});
  contenders.push_back({"no guards", {.kind = PolicyKind::learned, .is_guarded = false}});
  std::list<LearnedPolicy> extra_policies;
  std::string file;
  for (int i = 2; i < argc; ++i) {
    if (std::string(argv[i]) == "--json" && i + 1 < argc) {
      file = argv[++i];
      continue;
    }
    const std::vector<std::string> parts = split(argv[i], '=');
    extra_policies.push_back(read_learned_policy(parts.back()));
    contenders.push_back({parts.front(), {.kind = PolicyKind::learned, .network = &extra_policies.back()}});
  }
  contenders.push_back({"bound", {}, true});
  std::vector<Case> random_cases, cases;
  add_random_trials(200, random_cases);
  Json result;
  result["made up"] = show("made up", contenders, random_cases, measure(contenders, random_cases),
                           [](const Case& one) { return one.family; });
  for (const Size& size : kSizes) add_traces(argv[1], size, cases), add_conditions(size, cases);
  const Fractions real = measure(contenders, cases);
  result["by family"] =
      show("unseen, by family", contenders, cases, real, [](const Case& one) { return one.family; });
  result["by devices"] = show("unseen, by devices", contenders, cases, real,
                              [](const Case& one) { return fmt::format("{}", one.devices); });
  result["wrong model"] = show_model_errors(contenders, cases);
  RealFileSystem files;
  if (!file.empty()) value_or_throw(write_atomically(files, Path(file), result.dump(1) + "\n"));
}
