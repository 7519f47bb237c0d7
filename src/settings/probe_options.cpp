// See probe_options.h.
#include "settings/probe_options.h"

#include "plan/plan.h"

namespace optimus {

void declare(OptionTable& table, ProbeOptions& options) {
  table.add("hardware", options.is_wanted, "measure this machine, for --cluster here (about a minute)");
  table.add(
      "links", options.has_links,
      "measure what joins the hosts of a launcher's ranks (5 s), as a cluster file; with --hardware their "
      "devices, too");
  table.add("device", options.device, "cpu|cuda", "what to measure (default: CUDA where there is one)");
  table.add_word("precision", options.precision, precision_words(),
                 "of the kernels (default: fp32 and bf16)");
  table.add("threads", options.threads, "N", "threads on the processor (default: its cores)");
  table.add("store", options.store, "etcd://HOST:PORT", "where ranks find each other, as for train");
  table.add("token-file", options.token_file, "FILE", "the ranks' token, as for train; else $OPTIMUS_TOKEN");
  table.add("out", options.out, "FILE", "write the hardware there instead of where --cluster here looks");
}

}  // namespace optimus
