// RepairForecast: estimates how long nodes stay absent, from a prior and the history of the run.
//
// There are three kinds of outages: a process restarts, a spot machine is replaced, or a server is repaired.
// Each kind has a log-normal distribution of durations, fitted to published traces. The proportions of the
// kinds are learned from the run. The expected remaining duration of an outage determines whether to wait for
// the node or to continue without it. Pure: the caller passes the current time.
#pragma once

#include <array>
#include <vector>

#include "simulate/availability.h"

namespace optimus {

struct OutageKind {
  const char* name;
  double median_seconds;
  double spread;  // standard deviation of the logarithm of the duration
  double weight;  // weight of the kind in the prior, as a number of outages
};
// docs/understand/recovery.md documents the traces and the fit.
const std::array<OutageKind, 3>& outage_kinds();

struct Outage {
  double begin_time = 0;
  double end_time = -1;  // -1: ongoing
};

class RepairForecast {
 public:
  // `history` contains the outages that started before `now`, including those that are still ongoing.
  RepairForecast(const std::vector<Outage>& history, double now);

  // Both functions describe an ongoing outage that has lasted `elapsed` seconds: the probability that it
  // lasts at least `further` more seconds, and its expected remaining seconds.
  double survival_probability(double elapsed, double further) const;
  double expected_remaining_seconds(double elapsed) const;
  // The expected duration of the outage beyond the next `further` seconds: the mean of max(0, remaining -
  // further).
  double expected_excess_seconds(double elapsed, double further) const;
  // The probability of each kind for the next outage.
  const std::array<double, 3>& shares() const { return shares_; }

 private:
  double survival(double seconds) const;
  double tail(double seconds) const;  // integral of survival() from `seconds` to infinity

  std::array<double, 3> shares_{};
};

// Costs of the two responses to a lost node: wait for it, or continue without it and readmit it when it
// returns.
struct WaitCosts {
  double speed_without = 1;    // relative to training with the node
  double replan_seconds = 1;   // pause to continue without it
  double readmit_seconds = 0;  // pause to readmit it
  double resume_seconds = 0;   // pause to resume the same plan if it returns in time
};
struct WaitChoice {
  double wait_seconds = 0;   // seconds to wait before continuing without the node; 0: do not wait
  double expected_loss = 0;  // expected training time lost until the node is back, in seconds at full speed
  double loss_without_wait = 0;  // expected_loss without waiting
};
WaitChoice wait_or_replan(const RepairForecast& forecast, double elapsed, const WaitCosts& costs);

// Estimates the rate of failures per node and second from a weak prior and the observed failures.
class FailureRate {
 public:
  void add_node_time(int nodes, double seconds) { node_seconds_ += nodes * seconds; }
  void add_failures(int count) { failures_ += count; }
  double per_node_second() const;

 private:
  double failures_ = 0, node_seconds_ = 0;
};

// Returns the durations of the outages in a trace, in seconds. With by_name, an outage ends when the same
// node returns (faults). With by_count, it ends when the next node joins, because spot machines do not return
// but are replaced. Outages that do not end within the trace are omitted.
enum class Matching { by_name, by_count };
std::vector<double> outage_durations(const AvailabilityTrace& trace, Matching matching);

// A log-normal distribution. fit_log_normal() is the maximum-likelihood fit and needs at least two
// durations.
struct LogNormal {
  double median = 1, spread = 1;
};
LogNormal fit_log_normal(const std::vector<double>& durations);

}  // namespace optimus
