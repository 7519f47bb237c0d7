// History: what runs on this machine took, of what the cost model said, by kind of work; and what that says of the next run: a factor for
// each kind, with an interval.
//
//   run 1: layers on h100 took 1.12 of the predicted seconds, messages in a domain 0.9, …
//   run 2: …                                              ──residuals──>  layers on h100: 1.09 (0.98–1.21)
//
// The logarithm of a factor is believed to be normal around 0, that is factor 1, until runs tell; each run tells it once, off by what
// differs from run to run. So one run moves the factor a part of the way, several that agree nearly all of it, and several that do not
// agree hardly. Nothing but dates is told of the order of runs. Pure; microseconds. Read next: cost/history_json.h (the file),
// cost/correction.h (what a prediction makes of it).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace optimus {

// What the cost model may be wrong about in different ways. small_messages: what latency decides; large_messages: what bandwidth does.
enum class ResidualKind { embedding, layers, head, optimizer, host, small_messages, large_messages };
inline constexpr std::size_t kResidualKinds = 7;
std::string text(ResidualKind kind);

// What one run says of one kind.
struct Evidence {
  ResidualKind kind = ResidualKind::layers;
  std::string where;      // a device type, "h100"; of messages with their link, "h100/domain"
  double log_factor = 0;  // of measured over predicted seconds
  double doubt = 0;       // its standard deviation beside what steps spread: what else is in the figure
  int steps = 1;          // that were measured
  bool operator==(const Evidence&) const = default;
};

// How layers were split: what a planner could look at first.
struct PastStrategy {
  int pp = 1, tp = 1, cp = 1, dp = 1, chunks = 1, microbatch = 1, zero = 0;
  bool sequence_parallel = false;
  std::string recompute = "none", schedule = "1f1b";
  bool operator==(const PastStrategy&) const = default;
};

struct PastRun {
  std::int64_t when = 0;  // of its end, seconds since 1970
  std::string device;     // type
  int devices = 1;
  std::int64_t parameters = 0, layers = 0, batch = 0, sequence_length = 0;
  double step_seconds = 0;
  PastStrategy strategy{};
  std::vector<Evidence> evidence{};
  bool operator==(const PastRun&) const = default;
};

struct History {
  std::vector<PastRun> runs;  // the oldest first
  bool operator==(const History&) const = default;
};
inline constexpr std::size_t kMostPastRuns = 256, kMostEvidence = 64;
// In its place by date; beyond the most, the oldest is forgotten.
void remember(History& history, PastRun run);

// What all runs together say of one kind.
struct Residual {
  ResidualKind kind = ResidualKind::layers;
  std::string where{};
  double factor = 1, low = 1, high = 1;  // low to high: 95 %
  double run_spread = 0;                 // of the logarithm, from run to run
  int num_runs = 0;
};
// By kind and place. The same whatever the order of the runs, bit for bit.
std::vector<Residual> residuals(const History& history);
// Of nothing known: 1.
double factor_of(const std::vector<Residual>& residuals, ResidualKind kind, const std::string& where);

// What is believed beforehand. kPriorSpread: of the logarithm of factors. kRunSpread: from run to run, as if kRunWeight runs had shown it.
// kStepSpread: from step to step. A run counts half as much as one that is kHalfLife younger.
inline constexpr double kPriorSpread = 0.25, kRunSpread = 0.15, kRunWeight = 2, kStepSpread = 0.3;
inline constexpr double kHalfLife = 30 * 86400.0;

}  // namespace optimus
