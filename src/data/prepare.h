// Raw text to token files, on several threads, in one pass: read, filter, tokenize, write.
//
// The result does not depend on the number of threads: documents are written in the order of the input, and
// of equal documents the first is kept. Nothing appears under the output's name unless everything went well.
#pragma once

#include <functional>

#include "base/event.h"
#include "base/json.h"
#include "data/filters.h"
#include "tokenizer/tokenizer.h"

namespace optimus {

struct PrepareOptions {
  std::vector<std::string> inputs;
  std::string text_key = "text";
  FilterOptions filters;
  int threads = 0;  // 0: as many as there are cores
};

struct PrepareSummary {
  std::int64_t documents_read = 0, documents_kept = 0;
  std::int64_t dropped_empty = 0, dropped_short = 0, dropped_duplicate = 0, dropped_held_out = 0;
  std::int64_t tokens = 0;  // with the end-of-document tokens
  std::int64_t bytes_read = 0;
  int threads = 0;
  double seconds = 0;
};

OrderedJson to_json(const PrepareSummary& summary);
std::string text(const PrepareSummary& summary);

// Calls `take` with the tokens of each kept document, in order, on the calling thread. The end-of-document
// token is appended where the tokenizer has one. Throws UserError for bad input.
PrepareSummary tokenize_documents(const PrepareOptions& options, const Tokenizer& tokenizer,
                                  EventSink& events, const std::function<void(std::vector<TokenId>)>& take);

// tokenize_documents into PREFIX.bin and PREFIX.idx.
PrepareSummary prepare_token_files(const PrepareOptions& options, const Tokenizer& tokenizer,
                                   const Path& prefix, FileSystem& files, EventSink& events);

}  // namespace optimus
