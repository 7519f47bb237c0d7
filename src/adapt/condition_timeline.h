// ConditionTimeline: the times of a run's conditions and node losses, read from a file or drawn at random.
// trials/timeline_trial.h creates simulated runs from timelines.
//
// The file format, with times in seconds from the start of the run:
//
//   {"format": "optimus-conditions", "version": 1, "length": 7200, "conditions": [
//     {"cause": "device", "where": 5, "factor": 1.5, "at": 600, "for": 1800},
//     {"cause": "link", "where": 1, "factor": 3, "at": 2000, "for": 600}],
//    "losses": [{"where": 2, "at": 4000, "for": 900}]}
//
// A loss makes a node unavailable for the given time. See also the traces of node availability in
// simulate/availability.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "cluster/cluster.h"
#include "policy/condition.h"

namespace optimus {

struct TimedCondition {
  Condition condition;
  double begin = 0, length = 0;
  bool operator==(const TimedCondition&) const = default;
};

// A node that is lost at `begin` and returns after `length` seconds.
struct TimedLoss {
  int node = 0;
  double begin = 0, length = 0;
  bool operator==(const TimedLoss&) const = default;
};

struct ConditionTimeline {
  double length = 0;
  std::vector<TimedCondition> conditions;
  std::vector<TimedLoss> losses{};
  bool operator==(const ConditionTimeline&) const = default;
};

bool looks_like_timeline(std::string_view text);
OrderedJson to_json(const ConditionTimeline& timeline);
// Throws UserError with the location in the file if the format is wrong, a cause is not related to machines,
// a time exceeds the length, a factor is below 1, or a key is unknown.
ConditionTimeline parse_timeline(std::string_view text, const std::string& source);
ConditionTimeline read_timeline(const Path& file);  // throws ReportedError

// Rates of random conditions and losses, in events per hour. The rates are estimates, but severities and
// durations are based on published figures (docs/understand/adaptation.md).
struct ConditionRates {
  double device_per_hour = 1.0 / 4000;  // per device
  double host_per_hour = 1.0 / 4000;    // per node
  double link_per_hour = 1.0 / 500;     // per node
  double loss_per_hour = 0;             // per node; 1 / 2,434 in InfiniteHBD's trace
};
// Draws slow devices and hosts, congested networks of nodes, and losses of nodes, for `length` seconds.
ConditionTimeline random_timeline(const Cluster& cluster, double length, const ConditionRates& rates,
                                  std::uint64_t seed);

}  // namespace optimus
