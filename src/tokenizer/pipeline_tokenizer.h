// A tokenizer that is described by a file. Encoding runs added tokens -> normalizer -> pre-tokenizer ->
// model, and a decoder converts tokens back to text. tokenizer_json.h creates the parts.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/token_decoder.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"
#include "tokenizer/vocabulary.h"
#include "tokenizer/wordpiece.h"

namespace optimus {

struct TokenizerParts {
  std::string source_json;
  CharClasses classes;
  Vocabulary vocabulary;                 // the vocabulary of the model, without added tokens
  std::vector<AddedToken> added_tokens;  // contents and ids are unique
  AddedTokenMatcher raw_tokens, normalized_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::optional<std::variant<Bpe, WordPiece>>
      model;  // must be set before make_pipeline_tokenizer() is called
  // Tokens that encode_with_specials() adds before and after the text.
  std::vector<TokenId> prefix_tokens, suffix_tokens;
  TokenDecoder decoder;
};

std::unique_ptr<Tokenizer> make_pipeline_tokenizer(TokenizerParts parts);

}  // namespace optimus
