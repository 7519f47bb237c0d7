// Any text as decisions.jsonl. An accepted record is described in one line and round-trips.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "observe/decisions.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  try {
    for (Decision& one : parse_decisions({reinterpret_cast<const char*>(data), size}, "decisions")) {
      if (text(one).find_first_of("\n\r\x1b") != std::string::npos) std::abort();
      if (one.kind == "realised") std::abort();
      if (one.alternatives.size() > 16) one.alternatives.resize(16);
      const std::string line = decision_line(one) + "\n";
      if (line.size() > 64 << 10) continue;  // escapes are longer than the characters that they represent
      if (parse_decisions(line, "again") != std::vector{one}) std::abort();
    }
  } catch (const UserError&) {
  }
  return 0;
}
