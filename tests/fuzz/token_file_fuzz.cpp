// Any bytes as an .idx file with a small .bin file, and as an llm.c shard: opens and reads, or a UserError.
#include <cstdint>
#include <fstream>

#include "data/token_set.h"
#include "scratch.h"

namespace {

void read_everything(const optimus::TokenSet& set) {
  std::vector<optimus::TokenId> tokens(
      static_cast<std::size_t>(std::min<std::int64_t>(set.num_tokens(), 1 << 16)));
  set.read(0, tokens);
  for (std::int64_t d = 0; d < std::min<std::int64_t>(set.num_documents(), 100); ++d)
    (void)set.document_start(d + 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  static const ScratchFolder scratch;
  const std::string prefix = (scratch.path() / "tokens").string();
  std::ofstream(prefix + ".idx", std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  std::ofstream(prefix + ".bin", std::ios::binary) << std::string(64, 'x');
  try {
    read_everything(*open_megatron(prefix));
  } catch (const ReportedError&) {
  }
  try {
    read_everything(*open_llmc({prefix + ".idx"}));
  } catch (const ReportedError&) {
  }
  return 0;
}
