// Any bytes as a text for small tokenizers of each kind: ids in range, the same result on repetition, and
// byte-level BPE round-trips any UTF-8.
#include <cstdint>
#include <cstdlib>

#include "../data/tiny_tokenizers.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace {

using namespace optimus;

Json qwen_like() {
  Json json = hello_json();
  json["normalizer"] = {{"type", "NFC"}};
  json["added_tokens"].push_back(added_token(263, "  ", false));
  json["added_tokens"].back()["lstrip"] = true;
  json["added_tokens"].back()["normalized"] = true;
  return json;
}

void check(const Tokenizer& tokenizer, std::string_view text, bool gives_back) {
  const std::vector<TokenId> ids = encoded(tokenizer, text);
  for (const TokenId id : ids)
    if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
  if (encoded(tokenizer, text) != ids) std::abort();
  const std::string decoded = tokenizer.decode(ids, false);
  if (gives_back && decoded != repair_utf8(text)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto join_request = tokenizer_of(hello_json()), qwen = tokenizer_of(qwen_like()),
                    bert = tokenizer_of(bert_json()), llama2 = tokenizer_of(llama2_json());
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(*join_request, text, true);
  check(*qwen, text, false);
  check(*bert, text, false);
  check(*llama2, text, false);
  return 0;
}
