// RecoveryCosts: how long plan changes and recoveries take. Replays and adaptation policies use these values.
// Measured values can be read from a file:
//
//   {"format": "optimus-recovery-costs", "version": 1, "detection_seconds": 0.1, "recovery_seconds": 0.4, …}
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace optimus {

// The measured fraction of the link bandwidth that state transfers achieve during plan changes
// (docs/understand/live-switching.md).
constexpr double kLinkEfficiency = 0.7;

struct RecoveryCosts {
  double start_seconds = 2;        // from the time when enough nodes are ready to the first step
  double detection_seconds = 0.1;  // from a loss to its detection by the survivors
  double recovery_seconds = 0.4;   // from the detection to the next step, not counting the transfer of state
  // pause of a plan change that was prepared during training, not counting the transfer of state
  double switch_seconds = 0.1;
  double prepare_seconds = 1;  // time that a new node needs to prepare for joining
  double join_bytes = 0;       // size of the state that each joining node receives
  double loss_bytes = 0;       // size of the state that each survivor receives if a loss changes the stages
  double link_bytes_per_second = kLinkEfficiency * 1.25e9;  // default: 10 Gbit/s

  double move_seconds(double bytes) const { return bytes / link_bytes_per_second; }
  bool operator==(const RecoveryCosts&) const = default;
};

OrderedJson to_json(const RecoveryCosts& costs);
// Throws UserError if the format is wrong, a key is unknown, or a value is out of range. Keys that are
// missing from the file keep their values in `costs`.
RecoveryCosts parse_recovery_costs(std::string_view text, const std::string& source,
                                   RecoveryCosts costs = {});

}  // namespace optimus
