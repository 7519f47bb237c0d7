// The kernel probe measures the speed of this engine's own kernels on a device, for cluster/kernel_times.h.
// It calls the same functions as the blocks. As in training, sizes are those of real models, and operands are
// too large for the caches.
#pragma once

#include "base/event.h"
#include "cluster/kernel_times.h"
#include "engine/device.h"

namespace optimus {

// Measures all kernels. Takes several seconds on a GPU, and about half a minute per precision on a small
// CPU. Throws UserError for fp8 on CPUs.
KernelTimes probe_kernels(at::Device device, Precision precision, EventSink& events);

// Measures memory bandwidth. Returns the total bytes per second that a copy of a large buffer reads and
// writes.
double probe_memory(at::Device device);

}  // namespace optimus
