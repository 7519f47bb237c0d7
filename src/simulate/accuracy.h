// Compares predictions with measured runs: errors by row, source and software, and whether plans are ranked
// correctly.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "simulate/runs.h"

namespace optimus {

struct RunOutcome {
  const Run* run = nullptr;
  // Predicted seconds per step, with constants fitted to all runs and with constants fitted without this
  // run's source.
  double seconds = 0, seconds_left_out = 0;
  std::optional<double> bytes;
  double error() const;  // signed error of `seconds`, as a fraction of the measured seconds
  double memory_error() const;
};

// Predicts every run that can be simulated, including runs of MoE models, which are summarized separately.
std::vector<RunOutcome> predict_runs(std::span<const Run> runs, const Constants& constants);

struct ErrorSummary {
  double mape = 0, worst = 0;  // mean and largest absolute error, as fractions
  int rows = 0;
};

struct AccuracySummary {
  ErrorSummary step_time, memory, left_out_source;
  ErrorSummary mixture_time, mixture_memory;  // MoE models, which the other summaries exclude
  double rank_correlation = 0;                // Spearman's rank correlation, median over sweeps
  int sweeps = 0;
  // Fraction of correctly ordered pairs, among the pairs in a sweep that differ by more than 5 %.
  double pairs_ordered = 1;
  int pairs = 0, skipped = 0, mixtures = 0;
};
AccuracySummary summarise(std::span<const Run> runs, std::span<const RunOutcome> outcomes);

OrderedJson accuracy_json(std::span<const Run> runs, std::span<const RunOutcome> outcomes);
std::string accuracy_text(std::span<const Run> runs, std::span<const RunOutcome> outcomes);

}  // namespace optimus
