// DeviceFacts: the properties of this machine's devices that affect the choice of a plan. Plain data.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "base/units.h"

namespace optimus {

struct DeviceFacts {
  bool is_gpu = false;
  std::string type = "cpu";       // as named in standard clusters
  int count = 1;                  // number of devices to use if the user does not specify it
  std::optional<Bytes> memory{};  // of one GPU; for a processor, the memory that its workers share
  // Number of workers that share this CPU. Empty if all workers share it.
  std::optional<int> workers_per_processor{};
  std::optional<Bytes> memory_per_worker(int num_devices) const {
    return memory && !is_gpu ? Bytes(memory->value / std::max(1, workers_per_processor.value_or(num_devices)))
                             : memory;
  }
};

}  // namespace optimus
