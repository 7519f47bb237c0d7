// Any text as config.json: a valid model or a UserError. An accepted model round-trips.
#include <cstdint>
#include <cstdlib>

#include "model/hf_config.h"
#include "model/profile.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  try {
    const Json config = parse_json({reinterpret_cast<const char*>(data), size}, "config.json");
    const ModelSpec spec = spec_from_hf_config(config, "config.json");
    if (!(spec_from_hf_config(Json(hf_config_from_spec(spec)), "again") == spec)) std::abort();
    if (profile_model(spec, 1).parameters <= 0) std::abort();
  } catch (const UserError&) {
  }
  return 0;
}
