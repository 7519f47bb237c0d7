// From what a user writes after --data to tokens: a token-file prefix, llm.c shards, text, jsonl or a folder.
#pragma once

#include <memory>

#include "base/event.h"
#include "data/token_set.h"

namespace optimus {

// A prefix of .bin/.idx (or the name of either file) and llm.c shards are mapped; anything else is read as
// text and tokenized in memory, which needs the tokenizer. Throws UserError.
std::shared_ptr<const TokenSet> open_data(const std::string& name, const Tokenizer& tokenizer,
                                          EventSink& events);

// Whether the name is of token files, so that the tokenizer plays no part.
bool is_tokenized(const std::string& name);

}  // namespace optimus
