// TokenSet: a read-only set of tokenized documents, accessible as one stream (concatenated documents in
// file order).
//
// There are three kinds: Megatron's .bin/.idx pairs and llm.c's shards, which are memory-mapped, and tokens
// in memory. All functions are const and thread-safe. Opening a token set validates everything that later
// reads depend on, so reads do not fail. Read next: data/samples.h (how training samples are taken from the
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
  // The stream position at which a document starts. For document == num_documents(), returns num_tokens().
  virtual std::int64_t document_start(std::int64_t document) const = 0;
  // Reads tokens [start, start + out.size()) of the stream.
  virtual void read(std::int64_t start, std::span<TokenId> out) const = 0;
  virtual std::string dtype() const = 0;  // type of the stored tokens: "uint16", "int32", …

  // The document that contains stream position `position`. It is never an empty document.
  std::int64_t document_of(std::int64_t position) const;
};

// Opens PREFIX.bin and PREFIX.idx in Megatron-LM's format (docs/use/formats.md). Throws a ReportedError.
std::unique_ptr<TokenSet> open_megatron(const Path& prefix);

// Opens llm.c shards (.bin files with a header of 1 KiB each) as one stream. A document starts at each
// end-of-text token, as in the files that llm.c's tools write. Throws a ReportedError.
std::unique_ptr<TokenSet> open_llmc(const std::vector<Path>& shards);
// Whether the file starts with llm.c's magic number.
bool is_llmc_shard(const Path& path);

// document_starts[i] is the start of document i. The first document starts at 0.
std::unique_ptr<TokenSet> tokens_in_memory(std::vector<TokenId> tokens,
                                           std::vector<std::int64_t> document_starts);

}  // namespace optimus
