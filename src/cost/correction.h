// Applies the residuals of past runs to the inputs of predictions: device types, links, and the constants for
// host time and the optimizer.
//
// Residuals compare runs with predictions for built-in devices and links, so only built-in devices and links
// are corrected. A device type that `optimus profile` has measured, or a link that a cluster file overrides,
// is left unchanged. A device type is corrected by the residual of layers. The residuals of the embedding and
// the head are not used, because no property of a device type applies only to them. The functions have no
// side effects.
#pragma once

#include "base/json.h"
#include "cluster/hardware.h"
#include "cost/constants.h"
#include "cost/history.h"

namespace optimus {

struct CorrectedInputs {
  HardwareProfile profile;
  Constants constants;
  std::vector<Residual> applied_residuals;  // in the order of their first use
};
// Each factor is clamped to the range from 1 / kMaxCorrection to kMaxCorrection.
inline constexpr double kMaxCorrection = 10;
CorrectedInputs correct_inputs(HardwareProfile profile, const Constants& constants,
                               const std::vector<Residual>& residuals);

// "history: seconds of layers on h100 x 1.09 (0.98–1.21, 7 runs); …", or a note that the history has no runs
// on these devices.
std::string text(const CorrectedInputs& inputs);
OrderedJson to_json(const std::vector<Residual>& residuals);

}  // namespace optimus
