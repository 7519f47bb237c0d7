// A user-written time line of conditions. An accepted time line round-trips.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "adapt/time_line.h"
#include "base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)optimus::looks_like_time_line(text);
  try {
    const optimus::TimeLine line = optimus::parse_time_line(text, "time line");
    if (!(optimus::parse_time_line(optimus::to_json(line).dump(), "again") == line)) std::abort();
  } catch (const optimus::UserError&) {
  }
  return 0;
}
