// Text to token ids and back. A Tokenizer is immutable after loading and may be used by many threads at once.
//
// load_tokenizer() reads Hugging Face's tokenizer.json (byte-level BPE of GPT-2, Llama 3, Qwen 2 and their
// kin; character BPE of Llama 2 and Mistral; WordPiece of BERT); byte_tokenizer() needs no file. What a file
// asks for and we do not do is refused by name. Read next: pipeline_tokenizer.h, which shows the way of a
// text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "tokenizer/token_id.h"

namespace optimus {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text` to `out`. The text may be any bytes; what is not UTF-8 is read as U+FFFD, as
  // the tokenizers library's callers do. Added tokens in the text ("<|endoftext|>") become their ids; nothing
  // is put before or after (see encode_with_specials). Throws UserError for a text of more than 2 GiB, and
  // when a pattern from the file takes too many steps on the text. Words seen lately are remembered from call
  // to call, so one tokenizer for all documents is fastest.
  virtual void encode(std::string_view text, std::vector<TokenId>& out) const = 0;
  // As encode, with what the file's post-processor adds ([CLS] … [SEP]; a begin-of-text token).
  virtual void encode_with_specials(std::string_view text, std::vector<TokenId>& out) const = 0;
  // Ids outside the vocabulary are skipped. skip_special drops special added tokens.
  virtual std::string decode(const std::vector<TokenId>& ids, bool skip_special) const = 0;

  // One more than the largest id, added tokens included.
  virtual std::int64_t vocab_size() const = 0;
  virtual std::optional<TokenId> id_of(std::string_view token) const = 0;
  // The token that ends a document: 256 for bytes; for files the first present of a list of usual names
  // ("<|endoftext|>", "<|end_of_text|>", "</s>", "[SEP]", …).
  virtual std::optional<TokenId> end_of_document() const = 0;
  // For masked-LM training.
  virtual std::optional<TokenId> mask_token() const = 0;
  virtual bool is_special(TokenId id) const = 0;
  // The tokenizer.json it was made from, to be copied beside exported models; "" for bytes.
  virtual const std::string& source_json() const = 0;
};

// Ids 0–255 are the bytes, 256 ends a document.
std::unique_ptr<Tokenizer> byte_tokenizer();
// The same as a tokenizer.json, for other libraries. load_tokenizer() knows it again and gives the byte tokenizer, to which the
// name of the end token in a text is bytes like all others.
std::string byte_tokenizer_json();

// `path`: a tokenizer.json, or a folder that holds one. Throws UserError naming the file and field.
std::unique_ptr<Tokenizer> load_tokenizer(const Path& path);
// The same from memory; `source` names it in messages.
std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, const std::string& source);

// "bytes", a tokenizer.json, or a folder.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& bytes_or_path);

// What --tokenizer means when it is not given: the tokenizer.json in the model's folder, else "bytes".
std::string usual_tokenizer(const std::string& model);

}  // namespace optimus
