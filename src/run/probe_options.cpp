// See probe_options.h.
#include "run/probe_options.h"

#include "plan/plan.h"

namespace optimus {

void declare(OptionTable& table, ProbeOptions& options) {
  table.add("hardware", options.is_wanted, "measure this machine, for --cluster here (about a minute)");
  table.add("device", options.device, "cpu|cuda", "what to measure (default: CUDA where there is one)");
  table.add_word("precision", options.precision, precision_words(),
                 "of the kernels (default: fp32 and bf16)");
  table.add("threads", options.threads, "N", "threads on the processor (default: its cores)");
  table.add("out", options.out, "FILE", "write the hardware there instead of where --cluster here looks");
}

}  // namespace optimus
