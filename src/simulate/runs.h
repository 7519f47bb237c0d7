// Measured runs of other trainers, as a table of comma-separated values (columns: bench/data/README.md), each turned into
// something that can be simulated: model, plan, cluster, software. What a row leaves out is filled from the tables here and
// in cost/software.cpp, and every filled field is listed; a row that cannot be judged says why.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "simulate/csv.h"
#include "simulate/simulate.h"

namespace optimus {

struct MeasuredRun {
  std::string id, source;  // source: the origin, which is the id's first word
  std::string software, sweep;
  bool is_mixture = false;  // of experts: predicted, but reported apart and never judged
  std::string skipped;      // why it is not judged; empty when it is
  std::vector<std::string> filled;

  double seconds = 0;           // measured, of a step; 0 where unknown
  std::optional<double> bytes;  // measured, of the fullest device
  MemoryKind memory_kind = MemoryKind::allocated;
};

// Everything that a simulation of one run refers to. Lives on the heap: the simulator keeps references to its neighbours.
struct RunCase {
  ModelSpec model;
  Plan plan;
  std::optional<Cluster> cluster;
  DeviceMap map;
  Software software;
  ProductFormat format;
  std::optional<StepSimulator> simulator;

  Setup setup() const { return {plan, model, *cluster, map, software, format}; }
  // Of the fullest stage, as the measurement would show it.
  Bytes memory(MemoryKind kind, const Constants& constants) const;
};

struct Run {
  MeasuredRun measured;
  std::unique_ptr<RunCase> run;  // none when it is not predicted
  bool is_judged() const { return run != nullptr && !measured.is_mixture; }
};

// Never throws for a row's content: such a row is skipped and says why.
Run read_run(const CsvTable& table, std::size_t row);
std::vector<Run> read_runs(const CsvTable& table);

}  // namespace optimus
