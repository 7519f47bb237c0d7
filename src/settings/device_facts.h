// DeviceFacts: the devices of this machine as far as they affect the choice of a plan. Plain data.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "base/units.h"

namespace optimus {

struct DeviceFacts {
  bool is_gpu = false;
  std::string type = "cpu";       // as named in standard clusters
  int count = 1;                  // devices used if no number is given
  std::optional<Bytes> memory{};  // of one GPU; for a processor, the memory that its workers share
  std::optional<int> workers_per_processor{};  // workers on this processor; empty: all
  std::optional<Bytes> memory_per_worker(int num_devices) const {
    return memory && !is_gpu ? Bytes(memory->value / std::max(1, workers_per_processor.value_or(num_devices)))
                             : memory;
  }
};

}  // namespace optimus
