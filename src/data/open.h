// Opens the value of --data: the prefix of token files, llm.c shards, text, jsonl or a folder.
#pragma once

#include <memory>

#include "base/event.h"
#include "data/token_set.h"

namespace optimus {

// `name` is the prefix of .bin/.idx files, the name of either file, or one or more llm.c shards; these are
// memory-mapped. Anything else is read as text and tokenized in memory with the tokenizer. Throws UserError.
std::shared_ptr<const TokenSet> open_data(const std::string& name, const Tokenizer& tokenizer,
                                          EventSink& events);

// Whether the name refers to token files, which do not need the tokenizer.
bool is_tokenized(const std::string& name);

}  // namespace optimus
