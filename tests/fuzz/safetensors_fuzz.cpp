// Any bytes as a safetensors file: tensors that lie inside the file and cover its data, or a UserError.
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  try {
    const SafetensorsContent content = parse_safetensors(file, "fuzz.safetensors");
    std::size_t covered = 0;
    for (const StoredTensor& tensor : content.tensors) {
      if (static_cast<std::int64_t>(tensor.bytes.size()) != tensor.num_bytes()) std::abort();
      covered += tensor.bytes.size();
      if (!is_float(tensor.type)) continue;
      std::vector<float> values(tensor.bytes.size() / static_cast<std::size_t>(width(tensor.type)));
      decode(tensor.type, tensor.bytes, std::span(values));  // reads every byte
    }
    if (size < 8 + covered) std::abort();
  } catch (const UserError& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
  return 0;
}
