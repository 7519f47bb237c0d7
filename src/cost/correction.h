// What past runs say of the cost model, put into what it predicts from: device types, links, and constants of the host and of updates.
//
// Runs are compared with predictions for devices and links as this program ships them, so only those are corrected: a device type that
// `optimus profile` has measured, or a link that a cluster file states otherwise, is left as it is. Layers decide the factor of a device
// type; factors of embedding and head are not used, because no constant is theirs alone. Pure.
#pragma once

#include "base/json.h"
#include "cluster/hardware.h"
#include "cost/constants.h"
#include "cost/history.h"

namespace optimus {

struct Corrected {
  HardwareProfile profile;
  Constants constants;
  std::vector<Residual> used;  // that something was changed by
};
// A factor counts from 1 / kMostCorrection to kMostCorrection.
inline constexpr double kMostCorrection = 10;
Corrected corrected(HardwareProfile profile, const Constants& constants,
                    const std::vector<Residual>& residuals);

// "history: seconds of layers on h100 x 1.09 (0.98–1.21, 7 runs); …", or that it says nothing of these machines.
std::string text(const Corrected& corrected);
OrderedJson to_json(const std::vector<Residual>& residuals);

}  // namespace optimus
