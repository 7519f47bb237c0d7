// History: the ratio of measured to predicted seconds for each kind of work in past runs on this machine. The
// correction factors for the next run, with confidence intervals, follow from these ratios.
//
//   run 1: layers on h100 took 1.12 of the predicted seconds, messages in a domain 0.9, …
//   run 2: …                                              ──residuals──>  layers on h100: 1.09 (0.98–1.21)
//
// The logarithm of each factor has a normal prior around 0 (factor 1). Each run is one observation, and the
// noise of an observation includes the variation from run to run. Therefore a single run moves the factor
// only part of the way to its ratio. Several consistent runs move it nearly all the way, and inconsistent
// runs hardly move it. The result does not depend on the order of runs. Older runs get less weight. All
// functions are free of side effects and take microseconds. Read next: cost/history_json.h (the file),
// cost/correction.h (application to predictions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace optimus {

// Kinds of work with independent prediction errors. Latency dominates the time of small_messages, and
// bandwidth dominates the time of large_messages.
enum class ResidualKind { embedding, layers, head, optimizer, host, small_messages, large_messages };
inline constexpr std::size_t kResidualKinds = 7;
std::string text(ResidualKind kind);

// The observation of one run for one kind of work.
struct Evidence {
  ResidualKind kind = ResidualKind::layers;
  std::string device_type;  // "h100"; for messages, with the link: "h100/domain"
  double log_factor = 0;    // log(measured seconds / predicted seconds)
  // The standard deviation of log_factor from sources other than the variation between steps.
  double uncertainty = 0;
  int steps = 1;  // number of measured steps
  bool operator==(const Evidence&) const = default;
};

// The strategy of a past run. Planners may use it as their first candidate.
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
// Inserts the run in order of end time. If the history then exceeds kMaxPastRuns, removes the oldest run.
void add_run(History& history, PastRun run);

// The correction factor for one kind of work on one device type or link, derived from all runs.
struct Residual {
  ResidualKind kind = ResidualKind::layers;
  std::string device_type{};
  // The factor by which to multiply predicted seconds, and the bounds of its 95 % interval.
  double factor = 1, low = 1, high = 1;
  double run_spread = 0;  // standard deviation of the factor's logarithm from run to run
  int num_runs = 0;
};
// Returns the residuals sorted by kind and device type. The result is bitwise independent of the order of the
// runs.
std::vector<Residual> residuals(const History& history);
// The factor for this kind and device type, or 1 if there is no such residual.
double factor_of(const std::vector<Residual>& residuals, ResidualKind kind, const std::string& device_type);

// Parameters of the estimate. Spreads are standard deviations of logarithms. kPriorSpread is the prior spread
// of a factor. kRunSpread is the prior of the variation from run to run and has the weight of kRunWeight
// runs. kStepSpread is the variation from step to step. The weight of a run halves every kHalfLife seconds.
inline constexpr double kPriorSpread = 0.25, kRunSpread = 0.15, kRunWeight = 2, kStepSpread = 0.3;
inline constexpr double kHalfLife = 30 * 86400.0;

}  // namespace optimus
