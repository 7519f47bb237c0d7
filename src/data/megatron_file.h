// The writer for Megatron-LM's token files and the constants of the format. The reader is open_megatron() in
// data/token_set.h. docs/use/formats.md describes the format.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "data/token_set.h"

namespace optimus {

inline constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
inline constexpr std::uint64_t kMegatronVersion = 1;
inline constexpr std::int64_t kMegatronHeaderBytes = 34;

// The element types of token files, with Megatron's codes.
enum class TokenType : std::uint8_t { uint8 = 1, int8 = 2, int16 = 3, int32 = 4, int64 = 5, uint16 = 8 };

// Megatron's rule: uint16 if the vocabulary has fewer than 65,500 tokens, otherwise int32.
TokenType token_type_for(std::int64_t vocab_size);
std::string_view text(TokenType type);  // "uint16"

// Writes PREFIX.bin while documents are added, and PREFIX.idx in finish(). Neither file appears under its
// final name before finish(). An existing pair is replaced safely: the old index is removed first, and the
// new index is written last.
class MegatronWriter {
 public:
  static Outcome<MegatronWriter> create(FileSystem& files, const Path& prefix, TokenType type);
  // Adds one document as one sequence. The token ids must fit the element type.
  Outcome<void> add(std::span<const TokenId> tokens);
  Outcome<void> finish();

  std::int64_t num_documents() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t num_tokens() const { return num_tokens_; }

 private:
  MegatronWriter(FileSystem& files, Path prefix, TokenType type, AtomicFile bin)
      : files_(&files), prefix_(std::move(prefix)), type_(type), bin_(std::move(bin)) {}

  FileSystem* files_;
  Path prefix_;
  TokenType type_;
  AtomicFile bin_;
  std::vector<std::int32_t> lengths_;
  std::int64_t num_tokens_ = 0;
  std::string buffer_;
};

// Appends an extension to PREFIX, even if PREFIX contains dots.
Path with_extension(const Path& prefix, std::string_view extension);

}  // namespace optimus
