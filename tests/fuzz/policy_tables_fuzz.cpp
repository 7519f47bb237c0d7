// Tables of published results, and a file of recovery costs: the text is split at its first zero byte.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "trials/published.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = std::min(all.find('\0'), all.size());
  const std::string_view first = all.substr(0, cut), second = all.substr(std::min(cut + 1, all.size()));
  try {
    (void)optimus::PublishedTables::parse(first, second, "throughput.csv", "costs.csv");
  } catch (const optimus::UserError&) {
  }
  try {
    (void)optimus::parse_recovery_costs(first, "costs.json");
  } catch (const optimus::UserError&) {
  }
  return 0;
}
