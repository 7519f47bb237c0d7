// Any text as model.safetensors.index.json: files in the same folder, or a one-line UserError.
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  try {
    for (const auto& [tensor, file] :
         parse_safetensors_index({reinterpret_cast<const char*>(data), size}, "fuzz"))
      if (file.empty() || file.find('/') != std::string::npos || Path(file).filename() != file) std::abort();
  } catch (const UserError& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
  return 0;
}
