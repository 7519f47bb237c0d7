// Replays published traces and prints the tables of docs/results/recovery.md.
//
//   bench_replay [FOLDER] [COSTS.json]     the folder contains the traces, throughput.csv, costs.csv and
//                                          reference_results.csv (default: tests/data/oobleck)
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "simulate/csv.h"
#include "trials/published.h"

namespace optimus {
namespace {

constexpr int kRepeats = 64;
constexpr const char* kTraces[] = {
    "6h.csv", "3h.csv", "1h.csv", "30m.csv", "10m.csv", "5m.csv", "scale_p3-trace.csv"};

struct Inputs {
  Path folder;
  PublishedTables tables;
  RecoveryCosts costs;
  std::string read(const std::string& name) const {
    return value_or_throw(read_file(folder / name, Bytes(1 << 24)));
  }
  AvailabilityTrace trace(const std::string& name) const { return parse_trace(read(name), name); }
};

double reproduced(const Inputs& inputs, System system, const std::string& model,
                  const AvailabilityTrace& trace, StepCounting counting) {
  const PublishedSystem& published = inputs.tables.of(system, model);
  ReplayCase replay_case{.trace = trace, .throughput = published.throughput, .batch = published.batch};
  replay_case.reconfiguration = published.reconfiguration, replay_case.counting = counting;
  return replay(system, replay_case).samples_per_second;
}

void show_reproduction(const Inputs& inputs) {
  const CsvTable results = parse_csv(inputs.read("reference_results.csv"), "reference_results.csv");
  fmt::print(
      "| system | results | as published: worst, median error | without artefacts: worst, median error |\n");
  fmt::print("|---|---|---|---|\n");
  for (const System system : {System::oobleck, System::varuna, System::bamboo}) {
    std::vector<double> errors[2];
    for (std::size_t row = 0; row < results.rows.size(); ++row) {
      if (results.cell(row, "system") != text(system)) continue;
      const AvailabilityTrace trace = inputs.trace(results.cell(row, "trace"));
      for (int i = 0; i < 2; ++i) {
        const double expected = std::stod(results.cell(row, i == 0 ? "samples_per_s" : "without_artefacts"));
        const double found = reproduced(inputs, system, results.cell(row, "model"), trace,
                                        i == 0 ? StepCounting::as_published : StepCounting::completed_only);
        errors[i].push_back(expected == 0 ? std::abs(found) : std::abs(found / expected - 1));
      }
    }
    std::string cells;
    for (std::vector<double>& own : errors) {
      std::sort(own.begin(), own.end());
      cells += fmt::format(" {:.3f} %, {:.4f} % |", own.back() * 100, own[own.size() / 2] * 100);
    }
    fmt::print("| {} | {} |{}\n", text(system), errors[0].size(), cells);
  }
}

// All systems use the throughput of Oobleck's table, so only policies and costs differ.
void show_comparison(const Inputs& inputs) {
  fmt::print(
      "\nsamples/s, Bamboo / Varuna / Oobleck / ours; over the whole trace, mean of {} replays; in "
      "parentheses: ours relative to the best other system\n\n",
      kRepeats);
  fmt::print("| model |");
  for (const char* name : kTraces) fmt::print(" {} |", Path(name).stem().string());
  fmt::print("\n|---|---|---|---|---|---|---|---|\n");
  int won = 0, all = 0;
  for (const std::string& model : inputs.tables.models()) {
    fmt::print("| {} |", model);
    for (const char* name : kTraces) {
      const AvailabilityTrace trace = inputs.trace(name);
      std::string cell;
      double best = 0, own = 0;
      for (const System system : {System::bamboo, System::varuna, System::oobleck, System::ours}) {
        ReplayCase replay_case{.trace = trace,
                               .throughput = inputs.tables.of(System::oobleck, model).throughput};
        replay_case.batch = inputs.tables.of(System::oobleck, model).batch;
        if (system != System::ours)
          replay_case.reconfiguration = inputs.tables.of(system, model).reconfiguration;
        replay_case.costs = inputs.costs;
        const double of_a_node = 12 * published_parameters(model) / replay_case.reconfiguration.min_nodes;
        if (replay_case.costs.join_bytes == 0) replay_case.costs.join_bytes = of_a_node;
        if (replay_case.costs.loss_bytes == 0) replay_case.costs.loss_bytes = of_a_node;
        const double found = mean_replay(system, replay_case, kRepeats).goodput;
        (system == System::ours ? own : best) = system == System::ours ? found : std::max(best, found);
        cell += fmt::format("{}{:.4g}", cell.empty() ? "" : " / ", found);
      }
      fmt::print(" {} ({:+.2f} %) |", cell, (own / best - 1) * 100);
      won += own > best, ++all;
    }
    fmt::print("\n");
  }
  fmt::print("\nours is best in {} of {} cases\n", won, all);
}

int run(int argc, char** argv) {
  Inputs inputs{argc > 1 ? Path(argv[1]) : Path("tests/data/oobleck"), {}, {}};
  inputs.tables = PublishedTables::parse(inputs.read("throughput.csv"), inputs.read("costs.csv"),
                                         "throughput.csv", "costs.csv");
  if (argc > 2)
    inputs.costs = parse_recovery_costs(value_or_throw(read_file(argv[2], Bytes(1 << 20))), argv[2]);
  show_reproduction(inputs);
  show_comparison(inputs);
  return 0;
}

}  // namespace
}  // namespace optimus

int main(int argc, char** argv) {
  try {
    return optimus::run(argc, argv);
  } catch (const optimus::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
