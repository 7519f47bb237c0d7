// Conversion between text and token ids. A Tokenizer is immutable and thread-safe. byte_tokenizer() needs no
// file. Read next: open_tokenizer.h, which opens tokenizers from files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/token_id.h"

namespace optimus {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text` to `out`. The text may contain any bytes. Invalid UTF-8 is replaced with
  // U+FFFD, as is usual before calling the tokenizers library. Added tokens in the text ("<|endoftext|>") are
  // converted to their ids. No tokens are added before or after the text (see encode_with_specials()). Throws
  // a UserError if the text is larger than 2 GiB, or if a pattern from the file needs too many steps on the
  // text. Recently encoded words are cached across calls, so using one tokenizer for all documents is
  // fastest.
  virtual void encode(std::string_view text, std::vector<TokenId>& out) const = 0;
  // Like encode(), but adds the tokens of the file's post-processor, such as [CLS] and [SEP] or a
  // begin-of-text token.
  virtual void encode_with_specials(std::string_view text, std::vector<TokenId>& out) const = 0;
  // Skips ids outside the vocabulary and, if `skip_special` is true, special added tokens.
  virtual std::string decode(const std::vector<TokenId>& ids, bool skip_special) const = 0;

  // The largest id plus one, including added tokens.
  virtual std::int64_t vocab_size() const = 0;
  virtual std::optional<TokenId> id_of(std::string_view token) const = 0;
  // The token that ends a document. For the byte tokenizer, it is 256. For tokenizers from files, it is the
  // first token in a list of common names that exists ("<|endoftext|>", "<|end_of_text|>", "</s>", "[SEP]",
  // …).
  virtual std::optional<TokenId> end_of_document() const = 0;
  // The mask token for masked-LM training.
  virtual std::optional<TokenId> mask_token() const = 0;
  virtual bool is_special(TokenId id) const = 0;
  // The content of the tokenizer.json from which this tokenizer was created, which is copied into exported
  // models. Empty for the byte tokenizer.
  virtual const std::string& source_json() const = 0;
};

// Ids 0–255 are the bytes, and id 256 ends a document.
std::unique_ptr<Tokenizer> byte_tokenizer();
// The byte tokenizer as a tokenizer.json, for other libraries. load_tokenizer() recognizes this file and
// returns the byte tokenizer. If a text contains the name of the end token, the byte tokenizer encodes it as
// ordinary bytes.
std::string byte_tokenizer_json();

}  // namespace optimus
