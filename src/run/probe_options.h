// What a user can say about measuring this machine.
#pragma once

#include <string>

#include "base/options.h"

namespace optimus {

struct ProbeOptions {
  bool is_wanted = false;
  std::string device;     // cpu, cuda; empty: CUDA where there is one
  std::string precision;  // which kernels; empty: fp32 and bf16
  std::int64_t threads = 0;
  Path out;  // empty: where --cluster here looks
};
void declare(OptionTable& table, ProbeOptions& options);

}  // namespace optimus
