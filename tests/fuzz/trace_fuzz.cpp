// Any text as an availability trace: a consistent trace or a UserError.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "simulate/availability.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const optimus::AvailabilityTrace trace =
        optimus::parse_trace(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz.csv");
    (void)optimus::node_counts(trace);
    if (trace.num_nodes < 1000)
      (void)optimus::replay_one_plan(
          trace, {.nodes_needed = 2, .step_seconds = 10, .tokens_per_step = 1, .restart_seconds = 5});
  } catch (const optimus::UserError&) {
  }
  return 0;
}
