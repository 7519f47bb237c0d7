// Any text: a JSON value or a UserError. An accepted value round-trips.
#include <cstdint>
#include <cstdlib>

#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  try {
    const Json value = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz.json");
    if (parse_json(value.dump(-1, ' ', false, Json::error_handler_t::replace), "again").size() !=
        value.size())
      std::abort();
  } catch (const UserError&) {
  }
  return 0;
}
