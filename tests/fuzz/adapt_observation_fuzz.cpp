// Step observations of a rank as read by other ranks. An accepted observation round-trips and can be merged.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "adapt/observation.h"
#include "base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    optimus::Observation seen =
        optimus::parse_observation({reinterpret_cast<const char*>(data), size}, "observation");
    if (!(optimus::parse_observation(optimus::to_json(seen).dump(), "again") == seen)) std::abort();
    for (const auto& [number, group] : seen.groups)
      for (const optimus::Spread& spread : group.spreads) (void)spread.median();
    const optimus::Observation copy = seen;
    seen.merge(copy);
  } catch (const optimus::UserError&) {
  }
  return 0;
}
