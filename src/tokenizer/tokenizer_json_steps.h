// Reads the step lists of a tokenizer.json: normalizer, pre-tokenizer and decoder. tokenizer_json.cpp reads
// everything else.
//
// Each function takes a view of its part of the file and throws a UserError for unsupported content.
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

// Throws a UserError if the object has a key that is not in `keys`.
void allow_only(const JsonView& view, std::initializer_list<std::string> keys);
// Throws a UserError about the value of the view's "type" key. The message lists the known types.
[[noreturn]] void refuse_type(const JsonView& view, std::string_view known_types);
// Flattens a Sequence: returns the elements of its list `list_key` in order, with nested Sequences expanded.
// Returns the view itself if it is not a Sequence.
std::vector<JsonView> steps_of(const JsonView& view, std::string_view list_key);

Normalizer read_normalizer(const JsonView& view);

struct PreTokenizerParts {
  PreTokenizer pre_tokenizer;
  bool is_byte_level = false;  // the model receives words as bytes
};
// `normalizer` is the normalizer that runs before the pre-tokenizer.
PreTokenizerParts read_pre_tokenizer(const JsonView& view, const Normalizer& normalizer);

TokenDecoder read_decoder(const JsonView& view);

}  // namespace optimus
