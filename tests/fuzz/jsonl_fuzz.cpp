// Any bytes as a jsonl line and as a held-out text.
#include <cstdint>

#include "data/documents.h"
#include "data/filters.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  RawDocument line{nullptr, "fuzz.jsonl", 1, std::as_bytes(std::span(data, size))};
  try {
    (void)fingerprint(text_of(line, "text"));
  } catch (const UserError&) {
  }
  return 0;
}
