// The lists of steps in a tokenizer.json: normalizer, pre-tokenizer, decoder. The rest is in
// tokenizer_json.cpp.
//
// Each function takes the view of its part and throws UserError for what it does not know.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/token_decoder.h"

namespace optimus {

// Refuses any other key.
void allow_only(const JsonView& view, std::initializer_list<std::string> keys);
// Refuses view's "type" by name.
[[noreturn]] void refuse_type(const JsonView& view, std::string_view known);
// The elements of a Sequence under `list_key`, in order, at any depth; or the part itself.
std::vector<JsonView> steps_of(const JsonView& view, std::string_view list_key);

Normalizer read_normalizer(const JsonView& view);

struct PreTokenizerParts {
  PreTokenizer pre_tokenizer;
  bool is_byte_level = false;  // words go to the model as bytes
};
// `normalizer`: what comes before it.
PreTokenizerParts read_pre_tokenizer(const JsonView& view, const Normalizer& normalizer);

TokenDecoder read_decoder(const JsonView& view);

}  // namespace optimus
