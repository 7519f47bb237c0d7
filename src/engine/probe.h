// The probe: how fast this engine's own kernels are on a device, for cluster/kernel_times.h. It calls what blocks call, on sizes
// that models have, with operands that are too many for the caches, as in a training.
#pragma once

#include "base/event.h"
#include "cluster/kernel_times.h"
#include "engine/device.h"

namespace optimus {

// Takes some seconds on a GPU, about half a minute for each precision on a small processor. Throws UserError for fp8
// on processors.
KernelTimes probe_kernels(at::Device device, Precision precision, EventSink& events);

// Bytes a second that a copy of a large buffer reads and writes.
double probe_memory(at::Device device);

}  // namespace optimus
