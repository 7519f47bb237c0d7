// An untrusted table of measured runs: every row is predicted or skipped with a reason.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "simulate/accuracy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const optimus::CsvTable table = optimus::parse_csv(text, "fuzz.csv");
    if (table.rows.size() > 3) return 0;  // each row is simulated
    for (std::size_t row = 0; row < table.rows.size(); ++row) {
      const optimus::Run run = optimus::read_run(table, row);
      if (run.run && run.run->plan.pipelines.front().microbatches.size() < 1000)
        (void)run.run->simulator->seconds(optimus::fitted_constants());
    }
  } catch (const optimus::UserError&) {
  }
  return 0;
}
