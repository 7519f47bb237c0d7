// Any text as a Megatron-LM launch: a valid plan, or a UserError.
#include <cstdint>
#include <cstdlib>

#include "plan/import.h"
#include "plan/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (!text.empty() && text.front() == '{') return 0;  // handled by the DeepSpeed fuzzer
  try {
    const ImportedPlan imported = import_plan(text, "fuzz.sh", {});
    if (find_problem(imported.plan, imported.model)) std::abort();
    for (const std::string& argument : imported.unknown)
      for (const char c : argument)
        if (static_cast<unsigned char>(c) >= 0x7f) std::abort();
  } catch (const UserError&) {
  }
  return 0;
}
