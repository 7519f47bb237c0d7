// TokenSet: documents of tokens, read only, seen as one stream (documents back to back, in file order).
//
// Three kinds: Megatron's .bin/.idx pair and llm.c's shards, both read by mmap, and tokens in memory. All
// functions are const and may be called from many threads. Opening checks everything that could make a later
// read go wrong, so reads do not fail. Read next: data/samples.h (how training samples are cut from the
// stream).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "tokenizer/tokenizer.h"

namespace optimus {

class TokenSet {
 public:
  virtual ~TokenSet() = default;

  virtual std::int64_t num_documents() const = 0;
  virtual std::int64_t num_tokens() const = 0;
  // Where document d begins in the stream; d == num_documents() gives num_tokens().
  virtual std::int64_t document_start(std::int64_t document) const = 0;
  // The tokens [start, start + out.size()) of the stream.
  virtual void read(std::int64_t start, std::span<TokenId> out) const = 0;
  virtual std::string dtype() const = 0;  // of the stored tokens: "uint16", "int32", …

  // The document that holds stream position `position`; empty documents hold none.
  std::int64_t document_of(std::int64_t position) const;
};

// PREFIX.bin and PREFIX.idx as Megatron-LM writes them (docs/formats.md). Throws UserError.
std::unique_ptr<TokenSet> open_megatron(const Path& prefix);

// llm.c shards (one .bin with a 1 KiB header each), as one stream. A document begins at each end-of-text
// token, as llm.c's writers put it. Throws UserError.
std::unique_ptr<TokenSet> open_llmc(const std::vector<Path>& shards);
// Whether the file begins with llm.c's magic number.
bool is_llmc_shard(const Path& path);

// documents[i] is the start of document i; the first is 0.
std::unique_ptr<TokenSet> tokens_in_memory(std::vector<TokenId> tokens,
                                           std::vector<std::int64_t> document_starts);

}  // namespace optimus
