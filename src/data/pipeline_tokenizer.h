// A tokenizer as a file describes it: added tokens -> normalizer -> pre-tokenizer -> model, and back through
// the decoder. tokenizer_json.h makes the parts.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "data/added_tokens.h"
#include "data/bpe.h"
#include "data/normalizer.h"
#include "data/pre_tokenizer.h"
#include "data/token_decoder.h"
#include "data/tokenizer.h"
#include "data/unicode.h"
#include "data/vocabulary.h"
#include "data/wordpiece.h"

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
