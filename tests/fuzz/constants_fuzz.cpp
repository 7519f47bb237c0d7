// Files of cost-model constants, metrics of a run, and published measured plans.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "cost/constants_json.h"
#include "simulate/refit.h"
#include "simulate/sailor.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] % 3 == 0) (void)optimus::parse_constants(text, "fuzz.json");
    if (data[0] % 3 == 1) (void)optimus::typical_seconds(optimus::step_seconds_of(text, "fuzz.jsonl"));
    if (data[0] % 3 == 2) (void)optimus::parse_measured_plan(text, "fuzz.json");
  } catch (const optimus::UserError&) {
  }
  return 0;
}
