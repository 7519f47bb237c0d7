// A user-written timeline of conditions. An accepted timeline round-trips.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "adapt/condition_timeline.h"
#include "base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)optimus::looks_like_timeline(text);
  try {
    const optimus::ConditionTimeline line = optimus::parse_timeline(text, "timeline");
    if (!(optimus::parse_timeline(optimus::to_json(line).dump(), "again") == line)) std::abort();
  } catch (const optimus::UserError&) {
  }
  return 0;
}
