// Implements probe_options.h.
#include "settings/probe_options.h"

#include "plan/plan.h"

namespace optimus {

void declare(OptionTable& table, ProbeOptions& options) {
  table.add("hardware", options.measures_devices,
            "measure this machine for use with --cluster here (takes about a minute)");
  table.add("links", options.measures_links,
            "measure the network between the hosts on which a launcher started ranks (takes 5 s) and write a "
            "cluster file; with --hardware, also measure their devices");
  table.add("device", options.device, "cpu|cuda",
            "device type to measure (default: cuda if a GPU is available)");
  table.add_word("precision", options.precision, precision_words(),
                 "precision of the measured kernels (default: fp32 and bf16)");
  table.add("threads", options.threads, "N", "number of CPU threads (default: all cores)");
  table.add("store", options.store, "etcd://HOST:PORT", "rendezvous store for the ranks, as for train");
  table.add("token-file", options.token_file, "FILE",
            "file with the ranks' token, as for train (default: $OPTIMUS_TOKEN)");
  table.add("out", options.out, "FILE", "output file (default: the file that --cluster here reads)");
}

}  // namespace optimus
