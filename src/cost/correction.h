// Applies the residuals of past runs to the inputs of predictions: device types, links, and constants of the
// host and the optimizer.
//
// Residuals compare runs with predictions for the built-in devices and links, so only those are corrected. A
// device type that `optimus profile` has measured, or a link that a cluster file overrides, is left
// unchanged. The residual of layers determines the factor of a device type; residuals of embedding and head
// are not used, because no constant applies to them alone. Pure.
#pragma once

#include "base/json.h"
#include "cluster/hardware.h"
#include "cost/constants.h"
#include "cost/history.h"

namespace optimus {

struct Corrected {
  HardwareProfile profile;
  Constants constants;
  std::vector<Residual> used;  // residuals that changed something
};
// Factors are limited to 1 / kMaxCorrection … kMaxCorrection.
inline constexpr double kMaxCorrection = 10;
Corrected corrected(HardwareProfile profile, const Constants& constants,
                    const std::vector<Residual>& residuals);

// "history: seconds of layers on h100 x 1.09 (0.98–1.21, 7 runs); …", or that the history has no runs of
// these devices.
std::string text(const Corrected& corrected);
OrderedJson to_json(const std::vector<Residual>& residuals);

}  // namespace optimus
