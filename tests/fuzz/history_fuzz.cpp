// The history of runs (cost/history_json.h): refused with one line, or read completely, with finite factors.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "cost/history_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  try {
    const History history =
        parse_history(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz.json");
    for (const Residual& one : residuals(history))
      ensure(std::isfinite(one.factor) && one.low <= one.factor && one.factor <= one.high, "{} of {} to {}",
             one.factor, one.low, one.high);
  } catch (const UserError&) {
  }
  return 0;
}
