// Reads measured runs of other trainers from a table of comma-separated values. bench/data/README.md
// describes its columns. Each row is converted to a simulation: model, plan, cluster, software. Missing
// fields are filled in from the tables in run_vocabulary.h and cost/software.cpp, and every filled field is
// listed. A row that cannot be used to evaluate predictions records the reason.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "simulate/csv.h"
#include "simulate/simulate.h"

namespace optimus {

struct MeasuredRun {
  std::string id, source;  // `source` is the publisher, which is the first word of `id`
  std::string software, sweep;
  bool is_mixture = false;  // MoE model: predicted, but reported separately
  std::string skip_reason;  // why the run is not evaluated; empty if it is evaluated
  std::vector<std::string> filled_fields;

  double seconds = 0;           // measured seconds per step; 0 if unknown
  std::optional<double> bytes;  // measured on the fullest device
  MemoryKind memory_kind = MemoryKind::allocated;
};

// Everything that the simulation of one run refers to. Must not be moved, because the simulator keeps
// references to the other members.
struct RunCase {
  ModelSpec model;
  Plan plan;
  std::optional<Cluster> cluster;
  DeviceMap map;
  Software software;
  GemmFormat format;
  std::optional<StepSimulator> simulator;

  Setup setup() const { return {plan, model, *cluster, map, software, format}; }
  // Memory of the fullest stage, as reported by this kind of measurement.
  Bytes memory(MemoryKind kind, const Constants& constants) const;
};

struct Run {
  MeasuredRun measured;
  std::unique_ptr<RunCase> run;  // null if the run cannot be simulated
  bool is_judged() const { return run != nullptr && !measured.is_mixture; }
};

// Does not throw if the content of a row is invalid. Such a row is skipped, and the result contains the
// reason.
Run read_run(const CsvTable& table, std::size_t row);
std::vector<Run> read_runs(const CsvTable& table);

}  // namespace optimus
