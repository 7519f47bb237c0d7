// RecoveryCosts: the cost of this system's plan changes, for replays and for decisions. Read from a file if
// measured values are available.
//
//   {"format": "optimus-recovery-costs", "version": 1, "detection_seconds": 0.1, "recovery_seconds": 0.4, …}
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace optimus {

// The fraction of a link's bandwidth that plan changes reach in measurements
// (docs/understand/live-switching.md).
constexpr double kLinkEfficiency = 0.7;

struct RecoveryCosts {
  double start_seconds = 2;        // from the first nodes being ready to the first step
  double detection_seconds = 0.1;  // from a loss to its detection by the survivors
  double recovery_seconds = 0.4;   // from there to the first step, without data transfer
  double switch_seconds = 0.1;     // pause of a change prepared while steps continued, without data transfer
  double prepare_seconds = 1;      // from a node being ready to it being prepared to join
  double join_bytes = 0;           // state that a joining node receives
  double loss_bytes = 0;           // state that a survivor receives if a loss changes the stages
  double link_bytes_per_second = kLinkEfficiency * 1.25e9;  // default: 10 Gbit/s

  double move_seconds(double bytes) const { return bytes / link_bytes_per_second; }
  bool operator==(const RecoveryCosts&) const = default;
};

OrderedJson to_json(const RecoveryCosts& costs);
// Throws UserError for another format, an unknown key, or a value out of range. Keys that are not present
// keep the values of `costs`.
RecoveryCosts parse_recovery_costs(std::string_view text, const std::string& source,
                                   RecoveryCosts costs = {});

}  // namespace optimus
