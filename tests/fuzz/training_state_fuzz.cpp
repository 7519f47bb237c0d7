// Any text as a checkpoint's state.json: a state that round-trips, or a one-line UserError.
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "checkpoint/training_state.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  try {
    const TrainingState state = parse_training_state({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (!(parse_training_state(training_state_text(state), "again") == state)) std::abort();
  } catch (const UserError& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
  return 0;
}
