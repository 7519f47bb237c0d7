// What a user can say about measuring this machine.
#pragma once

#include <string>

#include "base/options.h"

namespace optimus {

struct ProbeOptions {
  bool is_wanted = false;
  bool has_links = false;  // what joins the hosts of a launcher's ranks, too
  std::string device;      // cpu, cuda; empty: CUDA where there is one
  std::string precision;   // which kernels; empty: fp32 and bf16
  std::int64_t threads = 0;
  std::string store;  // where ranks meet, as of a training
  Path token_file;
  Path out;  // empty: where --cluster here looks
};
void declare(OptionTable& table, ProbeOptions& options);

}  // namespace optimus
