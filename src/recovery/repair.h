// How often nodes fail and how long they stay away: what a run expects before it has seen anything, and after.
//
// Outages are of three kinds: a process that is started again, a spot machine that another one follows, a server that somebody repairs.
// Each has a log-normal length, fitted to published traces; which kind a run has mostly, it learns. From that follow how much longer
// an outage will last that has lasted for some time, and whether to wait for its end or to go on without the node.
// Pure: who asks says what time it is.
#pragma once

#include <array>
#include <vector>

#include "simulate/availability.h"

namespace optimus {

struct OutageKind {
  const char* name;
  double median_seconds;
  double spread;  // of the length's logarithm
  double weight;  // of the kind before anything was seen, in outages
};
// docs/resilience.md says from which traces and how.
const std::array<OutageKind, 3>& outage_kinds();

struct Outage {
  double began = 0;
  double ended = -1;  // -1: not yet
};

class RepairForecast {
 public:
  // What is known at `now`: outages that ended, and how long the others have lasted.
  RepairForecast(const std::vector<Outage>& history, double now);

  // Of an outage that has lasted `elapsed` seconds and goes on.
  double chance_to_last(double elapsed, double further) const;  // at least `further` seconds more
  double expected_rest(double elapsed) const;
  // Seconds beyond `further`, on average over all outages: the mean of max(0, rest - further).
  double expected_beyond(double elapsed, double further) const;
  // Share of each kind among the outages that are to be expected.
  const std::array<double, 3>& shares() const { return shares_; }

 private:
  double survival(double seconds) const;
  double tail(double seconds) const;  // integral of the survival from there on

  std::array<double, 3> shares_{};
};

// A lost node's plan: wait for it, or go on without it and take it back when it comes.
struct WaitCosts {
  double speed_without = 1;      // of what training reaches with the node
  double replan_seconds = 1;     // to go on without it
  double take_back_seconds = 0;  // to let it in again
  double resume_seconds = 0;     // to go on as before when it is back in time
};
struct WaitChoice {
  double wait_seconds = 0;   // before going on without it; 0: at once
  double expected_loss = 0;  // seconds of full speed, until the node is back
  double loss_at_once = 0;   // when going on without it at once
};
WaitChoice wait_or_replan(const RepairForecast& forecast, double elapsed, const WaitCosts& costs);

// Losses by node and second, from a weak guess and what was seen.
class FailureRate {
 public:
  void see_nodes(int nodes, double seconds) { node_seconds_ += nodes * seconds; }
  void see_failures(int number) { failures_ += number; }
  double per_node_second() const;

 private:
  double failures_ = 0, node_seconds_ = 0;
};

// Lengths of a trace's outages, seconds. by_name: until the same node is back (faults); else until the next node comes that makes up
// for it (spot machines, which never come back themselves). What has no end in the trace is left out.
enum class Matching { by_name, by_count };
std::vector<double> outage_lengths(const AvailabilityTrace& trace, Matching matching);

// The log-normal that is most likely for these; there must be two at least.
struct LogNormal {
  double median = 1, spread = 1;
};
LogNormal fit_log_normal(const std::vector<double>& lengths);

}  // namespace optimus
