// Converts raw text to token files in one pass on several threads: read, filter, tokenize, write.
//
// The result does not depend on the number of threads, because documents are written in input order and only
// the first of several duplicate documents is kept. No output file appears unless the whole conversion
// succeeds.
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
  int threads = 0;  // 0 means one per core
};

struct PrepareSummary {
  std::int64_t documents_read = 0, documents_kept = 0;
  std::int64_t dropped_empty = 0, dropped_short = 0, dropped_duplicate = 0, dropped_held_out = 0;
  std::int64_t tokens = 0;  // including end-of-document tokens
  std::int64_t bytes_read = 0;
  int threads = 0;
  double seconds = 0;
};

OrderedJson to_json(const PrepareSummary& summary);
std::string text(const PrepareSummary& summary);

// Calls `consume` with the tokens of each document that passes the filters, in order, on the calling thread.
// Appends the end-of-document token if the tokenizer has one. Throws a ReportedError for invalid input.
PrepareSummary tokenize_documents(const PrepareOptions& options, const Tokenizer& tokenizer,
                                  EventSink& events,
                                  const std::function<void(std::vector<TokenId>)>& consume);

// Like tokenize_documents(), but writes the tokens to PREFIX.bin and PREFIX.idx.
PrepareSummary prepare_token_files(const PrepareOptions& options, const Tokenizer& tokenizer,
                                   const Path& prefix, FileSystem& files, EventSink& events);

}  // namespace optimus
