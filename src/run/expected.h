// What a training should take on this machine, where `optimus profile --hardware` has measured it.
#pragma once

#include <optional>
#include <string>

#include "base/event.h"
#include "cluster/hardware.h"
#include "plan/plan.h"

namespace optimus {

// The measured type of that name ("cpu", "h200"), if this machine was measured. A file that cannot be read is warned of.
std::optional<DeviceType> measured_type(const std::string& name, EventSink& events);

// Seconds of a step of a plan of one device; nothing when kernels of its precision were not measured, or the model is no
// transformer.
std::optional<double> expected_step_seconds(const DeviceType& type, const Plan& plan, const ModelSpec& model);

}  // namespace optimus
