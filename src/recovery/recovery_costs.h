// What our own changes of plan cost, for replays: one struct, read from a file where measured figures are at hand.
//
//   {"format": "optimus-recovery-costs", "version": 1, "detection_seconds": 0.1, "recovery_seconds": 0.4, …}
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace optimus {

// Of a link's speed, that changes of plan were seen to reach (docs/switching.md).
constexpr double kPartOfLink = 0.7;

struct RecoveryCosts {
  double start_seconds = 2;        // from the first nodes' being ready to the first step
  double detection_seconds = 0.1;  // from a loss to the survivors' knowing of it
  double recovery_seconds = 0.4;   // from there to the first step's begin, but for what moves
  double switch_seconds =
      0.1;  // the pause of a change that was prepared while steps went on, but for what moves
  double prepare_seconds = 1;  // from a node's being ready to its being prepared to enter
  double join_bytes = 0;       // of state that a node that enters has to receive
  double loss_bytes = 0;       // that a survivor has to, where stages are cut anew after a loss
  double link_bytes_per_second = kPartOfLink * 1.25e9;  // 10 Gbit/s, where nobody says

  double move_seconds(double bytes) const { return bytes / link_bytes_per_second; }
  bool operator==(const RecoveryCosts&) const = default;
};

OrderedJson to_json(const RecoveryCosts& costs);
// Throws UserError: another format, an unknown key, a number that is negative or no time. What is not named stays as it is.
RecoveryCosts parse_recovery_costs(std::string_view text, const std::string& source,
                                   RecoveryCosts costs = {});

}  // namespace optimus
