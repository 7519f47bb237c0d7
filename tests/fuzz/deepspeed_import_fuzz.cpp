// Any text as a DeepSpeed configuration: a valid plan, or a UserError.
#include <cstdint>
#include <cstdlib>

#include "model/presets.h"
#include "plan/import.h"
#include "plan/import_build.h"
#include "plan/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  static const ImportRequest request{.model = find_preset("gpt2"), .devices = 64};
  try {
    ImportedPlan imported;
    import_deepspeed({reinterpret_cast<const char*>(data), size}, "fuzz.json", request, imported);
    if (find_problem(imported.plan, imported.model)) std::abort();
  } catch (const UserError&) {
  }
  return 0;
}
