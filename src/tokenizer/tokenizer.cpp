// The byte tokenizer. Tokenizers from files are in pipeline_tokenizer.cpp.
#include "tokenizer/tokenizer.h"

namespace optimus {
namespace {

constexpr TokenId kEndOfDocument = 256;

class ByteTokenizer final : public Tokenizer {
 public:
  void encode(std::string_view text, std::vector<TokenId>& out) const override {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
    out.insert(out.end(), bytes, bytes + text.size());
  }
  void encode_with_specials(std::string_view text, std::vector<TokenId>& out) const override {
    encode(text, out);
  }
  std::string decode(const std::vector<TokenId>& ids, bool skip_special) const override {
    std::string result;
    for (const TokenId id : ids) {
      if (id >= 0 && id < 256) result.push_back(static_cast<char>(id));
      if (id == kEndOfDocument && !skip_special) result += kEndName;
    }
    return result;
  }
  std::int64_t vocab_size() const override { return 257; }
  std::optional<TokenId> id_of(std::string_view token) const override {
    if (token == kEndName) return kEndOfDocument;
    if (token.size() == 1) return static_cast<unsigned char>(token[0]);
    return std::nullopt;
  }
  std::optional<TokenId> end_of_document() const override { return kEndOfDocument; }
  std::optional<TokenId> mask_token() const override { return std::nullopt; }
  bool is_special(TokenId id) const override { return id == kEndOfDocument; }
  const std::string& source_json() const override { return no_source_; }

 private:
  static constexpr std::string_view kEndName = "<|endoftext|>";
  const std::string no_source_;
};

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace optimus
