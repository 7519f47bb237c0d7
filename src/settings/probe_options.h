// The options for measuring this machine (`optimus profile`).
#pragma once

#include <string>

#include "base/options.h"

namespace optimus {

struct ProbeOptions {
  bool measures_devices = false;
  bool measures_links = false;  // also measure the network between the hosts of a launcher's ranks
  std::string device;           // cpu, cuda; if empty, cuda if a GPU is available, else cpu
  std::string precision;        // of the measured kernels; if empty, fp32 and bf16
  std::int64_t threads = 0;
  std::string store;  // rendezvous store, as in a training
  Path token_file;
  Path out;  // output file; if empty, the file that --cluster here reads
};
void declare(OptionTable& table, ProbeOptions& options);

}  // namespace optimus
