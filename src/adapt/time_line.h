// Time lines: which conditions a run meets and when, as files and drawn at random. As trials: trials/line_trial.h.
//
// A time line of conditions, in seconds from the begin:
//
//   {"format": "optimus-conditions", "version": 1, "length": 7200, "conditions": [
//     {"cause": "device", "where": 5, "factor": 1.5, "at": 600, "for": 1800}, {"cause": "link", "where": 1, "factor": 3, "at": 2000, "for": 600}],
//    "losses": [{"where": 2, "at": 4000, "for": 900}]}
//
// where a loss is a node that is away for so long; or a trace of nodes that come and go (simulate/availability.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "adapt/condition.h"
#include "base/file.h"
#include "base/json.h"
#include "cluster/hardware.h"

namespace optimus {

struct TimedCondition {
  Condition condition;
  double at = 0, length = 0;
  bool operator==(const TimedCondition&) const = default;
};

// A node that goes, and comes back.
struct TimedLoss {
  int node = 0;
  double at = 0, length = 0;
  bool operator==(const TimedLoss&) const = default;
};

struct TimeLine {
  double length = 0;
  std::vector<TimedCondition> conditions;
  std::vector<TimedLoss> losses{};
  bool operator==(const TimeLine&) const = default;
};

bool looks_like_time_line(std::string_view text);
OrderedJson to_json(const TimeLine& line);
// Throws UserError with the place: another format, a cause that no machine has, times beyond the length, factors below 1, unknown keys.
TimeLine parse_time_line(std::string_view text, const std::string& source);
TimeLine read_time_line(const Path& file);  // throws UserError

// Conditions for so many devices over so long, as often as was guessed; how bad and how long is as published (docs/dynamic.md): slow devices and hosts, congested nodes.
struct ConditionRates {
  double device_per_hour = 1.0 / 4000;  // of one device
  double host_per_hour = 1.0 / 4000;    // of one node
  double link_per_hour = 1.0 / 500;     // of one node
  double loss_per_hour = 0;             // of one node; InfiniteHBD's had 1 / 2,434
};
TimeLine random_time_line(const Cluster& cluster, double length, const ConditionRates& rates,
                          std::uint64_t seed);

}  // namespace optimus
