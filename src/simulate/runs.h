// Measured runs of other trainers, from a table of comma-separated values (columns: bench/data/README.md).
// Each row is converted to a simulation: model, plan, cluster, software. Missing fields are filled in from
// the tables in run_vocabulary.h and cost/software.cpp, and every filled field is listed. A row that cannot
// be judged records the reason.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "simulate/csv.h"
#include "simulate/simulate.h"

namespace optimus {

struct MeasuredRun {
  std::string id, source;  // source: the publisher, which is the first word of the id
  std::string software, sweep;
  bool is_mixture = false;  // MoE model: predicted, but reported separately and not judged
  std::string skip_reason;  // why the run is not judged; empty for a judged run
  std::vector<std::string> filled_fields;

  double seconds = 0;           // measured seconds per step; 0 if unknown
  std::optional<double> bytes;  // measured on the fullest device
  MemoryKind memory_kind = MemoryKind::allocated;
};

// Everything that the simulation of one run refers to. Must not be moved, because the simulator refers to
// the other members.
struct RunCase {
  ModelSpec model;
  Plan plan;
  std::optional<Cluster> cluster;
  DeviceMap map;
  Software software;
  GemmFormat format;
  std::optional<StepSimulator> simulator;

  Setup setup() const { return {plan, model, *cluster, map, software, format}; }
  // Memory of the fullest stage, as a measurement of this kind reports it.
  Bytes memory(MemoryKind kind, const Constants& constants) const;
};

struct Run {
  MeasuredRun measured;
  std::unique_ptr<RunCase> run;  // null if the run cannot be simulated
  bool is_judged() const { return run != nullptr && !measured.is_mixture; }
};

// Never throws because of a row's content: an invalid row is skipped, with a reason.
Run read_run(const CsvTable& table, std::size_t row);
std::vector<Run> read_runs(const CsvTable& table);

}  // namespace optimus
