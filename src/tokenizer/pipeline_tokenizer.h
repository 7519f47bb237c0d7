// A tokenizer as a file describes it: added tokens -> normalizer -> pre-tokenizer -> model, and back through
// the decoder. tokenizer_json.h makes the parts.
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
  Vocabulary vocabulary;                 // the model's own
  std::vector<AddedToken> added_tokens;  // of different contents and ids
  AddedTokenMatcher raw_tokens, normalized_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::optional<std::variant<Bpe, WordPiece>> model;  // always there in the end
  std::vector<TokenId> before, after;                 // what encode_with_specials puts around
  TokenDecoder decoder;
};

std::unique_ptr<Tokenizer> make_pipeline_tokenizer(TokenizerParts parts);

}  // namespace optimus
