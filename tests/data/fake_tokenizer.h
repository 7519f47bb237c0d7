// A tokenizer whose tokens are bytes, for tests that do not need the tokenizer module.
#pragma once

#include "tokenizer/tokenizer.h"

namespace optimus {

class FakeTokenizer final : public Tokenizer {
 public:
  explicit FakeTokenizer(std::int64_t vocab = 257) : vocab_(vocab) {}
  void encode(std::string_view text, std::vector<TokenId>& out) const override {
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  }
  void encode_with_specials(std::string_view text, std::vector<TokenId>& out) const override {
    encode(text, out);
  }
  std::string decode(const std::vector<TokenId>& ids, bool) const override {
    return {ids.begin(), ids.end()};
  }
  std::int64_t vocab_size() const override { return vocab_; }
  std::optional<TokenId> id_of(std::string_view) const override { return std::nullopt; }
  std::optional<TokenId> end_of_document() const override { return 256; }
  std::optional<TokenId> mask_token() const override { return std::nullopt; }
  bool is_special(TokenId id) const override { return id == 256; }
  const std::string& source_json() const override { return empty_; }

 private:
  std::int64_t vocab_;
  std::string empty_;
};

}  // namespace optimus
