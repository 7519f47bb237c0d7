// Any text as a tokenizer.json: a tokenizer or a UserError; the tokenizer encodes and decodes without
// crashing.
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "tokenizer/open_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  try {
    const auto tokenizer = parse_tokenizer({reinterpret_cast<const char*>(data), size}, "fuzz.json");
    for (const std::string_view text : {"", "Hello wOrld's 123  \n\n é中👍 <|endoftext|>[MASK]",
                                        " a  b\xC3\xFF e\u0301 aaaaaaaaaaaaaaaaab"}) {
      try {
        std::vector<TokenId> ids;
        tokenizer->encode_with_specials(text, ids);
        (void)tokenizer->decode(ids, true);
        for (const TokenId id : ids)
          if (id < 0 || id >= tokenizer->vocab_size()) std::abort();
        (void)tokenizer->decode(ids, false);
      } catch (const UserError&) {  // a pattern that takes too many steps
      }
    }
  } catch (const UserError&) {
  }
  return 0;
}
