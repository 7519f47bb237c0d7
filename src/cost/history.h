// History: measured over predicted times of past runs on this machine, by kind of work, and the correction
// factors with intervals that follow from them for the next run.
//
//   run 1: layers on h100 took 1.12 of the predicted seconds, messages in a domain 0.9, …
//   run 2: …                                              ──residuals──>  layers on h100: 1.09 (0.98–1.21)
//
// The prior of a factor's logarithm is normal around 0 (factor 1). Each run is one observation, with noise
// for the variation from run to run. So one run moves the factor part of the way, several consistent runs
// nearly all of it, and inconsistent runs hardly at all. The order of runs matters only through their dates.
// Pure; takes microseconds. Read next: cost/history_json.h (the file), cost/correction.h (application to
// predictions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace optimus {

// Kinds of work whose prediction errors are independent. small_messages: dominated by latency;
// large_messages: dominated by bandwidth.
enum class ResidualKind { embedding, layers, head, optimizer, host, small_messages, large_messages };
inline constexpr std::size_t kResidualKinds = 7;
std::string text(ResidualKind kind);

// The observation of one run for one kind.
struct Evidence {
  ResidualKind kind = ResidualKind::layers;
  std::string device_type;  // device type, such as "h100"; for messages with the link, such as "h100/domain"
  double log_factor = 0;    // of measured over predicted seconds
  // standard deviation in addition to the variation between steps, from other contributions to the value
  double uncertainty = 0;
  int steps = 1;  // number of measured steps
  bool operator==(const Evidence&) const = default;
};

// How layers were split: a first candidate for a planner.
struct PastStrategy {
  int pp = 1, tp = 1, cp = 1, dp = 1, chunks = 1, microbatch = 1, zero = 0;
  bool sequence_parallel = false;
  std::string recompute = "none", schedule = "1f1b";
  bool operator==(const PastStrategy&) const = default;
};

struct PastRun {
  std::int64_t end_time = 0;  // end of the run, seconds since 1970
  std::string device;         // type
  int devices = 1;
  std::int64_t parameters = 0, layers = 0, batch = 0, sequence_length = 0;
  double step_seconds = 0;
  PastStrategy strategy{};
  std::vector<Evidence> evidence{};
  bool operator==(const PastRun&) const = default;
};

struct History {
  std::vector<PastRun> runs;  // oldest first
  bool operator==(const History&) const = default;
};
inline constexpr std::size_t kMaxPastRuns = 256, kMaxEvidence = 64;
// Inserts the run by date. Drops the oldest run above the limit.
void add_run(History& history, PastRun run);

// The combined result of all runs for one kind.
struct Residual {
  ResidualKind kind = ResidualKind::layers;
  std::string device_type{};
  double factor = 1, low = 1, high = 1;  // low to high: 95 % interval
  double run_spread = 0;                 // standard deviation of the logarithm from run to run
  int num_runs = 0;
};
// By kind and place. Bitwise independent of the order of the runs.
std::vector<Residual> residuals(const History& history);
// 1 if nothing is known.
double factor_of(const std::vector<Residual>& residuals, ResidualKind kind, const std::string& device_type);

// Priors. kPriorSpread: standard deviation of the logarithm of factors. kRunSpread: variation from run to
// run, with the weight of kRunWeight runs. kStepSpread: variation from step to step. The weight of a run
// halves every kHalfLife seconds.
inline constexpr double kPriorSpread = 0.25, kRunSpread = 0.15, kRunWeight = 2, kStepSpread = 0.3;
inline constexpr double kHalfLife = 30 * 86400.0;

}  // namespace optimus
