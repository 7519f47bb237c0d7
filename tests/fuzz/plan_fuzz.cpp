// Any text as a plan file: a valid plan that round-trips, or a UserError.
#include <cstdint>
#include <cstdlib>

#include "plan/describe.h"
#include "plan/plan_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  try {
    const Plan plan = parse_plan({reinterpret_cast<const char*>(data), size}, "fuzz.json");
    if (!(parse_plan(plan_text(plan), "again") == plan)) std::abort();
    (void)picture(plan);
  } catch (const UserError&) {
  }
  return 0;
}
