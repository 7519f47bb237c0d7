// History: for past runs on this machine, the ratio of measured to predicted seconds of each kind of work;
// and the correction factors that follow from these ratios for the next run, with confidence intervals.
//
//   run 1: layers on h100 took 1.12 of the predicted seconds, messages in a domain 0.9, …
//   run 2: …                                              ──residuals──>  layers on h100: 1.09 (0.98–1.21)
//
// The logarithm of each factor has a normal prior around 0 (factor 1). Each run is one observation, whose
// noise includes the variation from run to run. So one run moves the factor only part of the way to its
// ratio, several consistent runs nearly all of it, and inconsistent runs hardly at all. The order of runs
// does not matter; older runs weigh less. Pure; takes microseconds. Read next: cost/history_json.h (the
// file), cost/correction.h (application to predictions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace optimus {

// Kinds of work whose prediction errors are independent. The time of small_messages is dominated by
// latency, that of large_messages by bandwidth.
enum class ResidualKind { embedding, layers, head, optimizer, host, small_messages, large_messages };
inline constexpr std::size_t kResidualKinds = 7;
std::string text(ResidualKind kind);

// The observation of one run for one kind of work.
struct Evidence {
  ResidualKind kind = ResidualKind::layers;
  std::string device_type;  // device type, such as "h100"; for messages with the link, such as "h100/domain"
  double log_factor = 0;    // logarithm of measured over predicted seconds
  // Standard deviation of log_factor from sources other than the variation between steps.
  double uncertainty = 0;
  int steps = 1;  // number of measured steps
  bool operator==(const Evidence&) const = default;
};

// The strategy of a past run; planners may use it as their first candidate.
struct PastStrategy {
  int pp = 1, tp = 1, cp = 1, dp = 1, chunks = 1, microbatch = 1, zero = 0;
  bool sequence_parallel = false;
  std::string recompute = "none", schedule = "1f1b";
  bool operator==(const PastStrategy&) const = default;
};

struct PastRun {
  std::int64_t end_time = 0;  // when the run ended, in seconds since 1970
  std::string device;         // device type
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
// Inserts the run by its end time. Removes the oldest run if the history then exceeds kMaxPastRuns.
void add_run(History& history, PastRun run);

// The correction factor of one kind of work on one device type or link, from all runs.
struct Residual {
  ResidualKind kind = ResidualKind::layers;
  std::string device_type{};
  // factor by which to multiply predicted seconds; low to high: 95 % interval
  double factor = 1, low = 1, high = 1;
  double run_spread = 0;  // standard deviation of the logarithm from run to run
  int num_runs = 0;
};
// Sorted by kind and device type. The result does not depend on the order of the runs, bit for bit.
std::vector<Residual> residuals(const History& history);
// The factor for this kind and device type; 1 if the history has no such runs.
double factor_of(const std::vector<Residual>& residuals, ResidualKind kind, const std::string& device_type);

// Parameters of the estimate; spreads are standard deviations of logarithms. kPriorSpread: prior of a
// factor. kRunSpread: prior of the variation from run to run, with the weight of kRunWeight runs.
// kStepSpread: variation from step to step. The weight of a run halves every kHalfLife seconds.
inline constexpr double kPriorSpread = 0.25, kRunSpread = 0.15, kRunWeight = 2, kStepSpread = 0.3;
inline constexpr double kHalfLife = 30 * 86400.0;

}  // namespace optimus
