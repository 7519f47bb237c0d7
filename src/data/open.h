// Opens the data set that --data names: a prefix of token files, llm.c shards, a text file, a jsonl file or a
// folder.
#pragma once

#include <memory>

#include "base/event.h"
#include "data/token_set.h"

namespace optimus {

// `name` is the prefix of .bin/.idx files, the name of either file, an llm.c shard, or a folder of llm.c
// shards. These files are memory-mapped. Anything else is read as text and tokenized in memory. Throws a
// UserError.
std::shared_ptr<const TokenSet> open_data(const std::string& name, const Tokenizer& tokenizer,
                                          EventSink& events);

// Whether the name refers to token files, which can be read without a tokenizer.
bool is_tokenized(const std::string& name);

}  // namespace optimus
