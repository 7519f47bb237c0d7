// llm.c's token shards: a header of 256 int32 values (magic, version, count, …), followed by tokens as uint16
// (GPT-2) or uint32 (Llama 3).
#include <algorithm>
#include <cstring>
#include <mutex>

#include "data/token_set.h"

namespace optimus {
namespace {

constexpr std::int64_t kHeaderBytes = 256 * 4;

struct ShardKind {
  std::int32_t magic, version;
  std::int64_t width;
  TokenId end_of_text;
  const char* dtype;
};

constexpr ShardKind kShardKinds[] = {{20240520, 1, 2, 50256, "uint16"}, {20240801, 7, 4, 128000, "uint32"}};

std::int32_t header_word(const MappedFile& file, std::size_t index) {
  std::int32_t word;
  std::memcpy(&word, file.bytes().data() + 4 * index, 4);
  return word;
}

const ShardKind& check_shard(const MappedFile& file, const std::string& name) {
  const std::int64_t size = std::ssize(file.bytes());
  if (size < kHeaderBytes)
    throw UserError("{}: expected a token shard of at least {} bytes, got {}", name, kHeaderBytes, size);
  for (const ShardKind& kind : kShardKinds) {
    if (header_word(file, 0) != kind.magic) continue;
    if (header_word(file, 1) != kind.version)
      throw UserError("{}: byte 4: expected version {}, got {}", name, kind.version, header_word(file, 1));
    const std::int64_t tokens = header_word(file, 2);
    if (tokens < 0 || size != kHeaderBytes + tokens * kind.width)
      throw UserError("{}: byte 8: the header specifies {} tokens, but the file contains {}", name, tokens,
                      (size - kHeaderBytes) / kind.width);
    return kind;
  }
  throw UserError("{}: byte 0: expected magic 20240520 (GPT-2) or 20240801 (Llama 3), got {}", name,
                  header_word(file, 0));
}

class LlmcTokenSet final : public TokenSet {
 public:
  explicit LlmcTokenSet(const std::vector<Path>& paths) {
    for (const Path& path : paths) {
      shards_.push_back(value_or_throw(MappedFile::open(path)));
      const ShardKind& kind = check_shard(shards_.back(), path.string());
      if (kind_ != nullptr && kind_ != &kind)
        throw UserError("{}: the token type is {}, but the preceding shards contain {}", path.string(),
                        kind.dtype, kind_->dtype);
      kind_ = &kind;
      starts_.push_back(starts_.back() + header_word(shards_.back(), 2));
    }
    if (kind_ == nullptr) throw UserError("no token shards were specified");
  }

  std::int64_t num_tokens() const override { return starts_.back(); }
  std::int64_t num_documents() const override { return std::ssize(documents()) - 1; }
  std::int64_t document_start(std::int64_t document) const override {
    return documents()[static_cast<std::size_t>(document)];
  }
  std::string dtype() const override { return kind_->dtype; }

  void read(std::int64_t start, std::span<TokenId> out) const override {
    auto shard =
        static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), start) - starts_.begin()) -
        1;
    for (; !out.empty(); ++shard) {
      const std::int64_t num_in_shard = std::min<std::int64_t>(starts_[shard + 1] - start, std::ssize(out));
      for (std::int64_t i = 0; i < num_in_shard; ++i)
        out[static_cast<std::size_t>(i)] = token(shard, start - starts_[shard] + i);
      out = out.subspan(static_cast<std::size_t>(num_in_shard));
      start += num_in_shard;
    }
  }

 private:
  TokenId token(std::size_t shard, std::int64_t index) const {
    const std::byte* const at = shards_[shard].bytes().data() + kHeaderBytes + index * kind_->width;
    std::uint32_t value = 0;
    std::memcpy(&value, at, static_cast<std::size_t>(kind_->width));
    return static_cast<TokenId>(value);
  }

  // The files do not store document boundaries, so the first access finds them in one pass over the tokens.
  const std::vector<std::int64_t>& documents() const {
    std::call_once(documents_found_, [this] {
      documents_.push_back(0);
      for (std::size_t shard = 0; shard < shards_.size(); ++shard)
        for (std::int64_t i = 0; i < starts_[shard + 1] - starts_[shard]; ++i)
          if (token(shard, i) == kind_->end_of_text && starts_[shard] + i > 0)
            documents_.push_back(starts_[shard] + i);
      if (num_tokens() > 0) documents_.push_back(num_tokens());
    });
    return documents_;
  }

  const ShardKind* kind_ = nullptr;
  std::vector<MappedFile> shards_;
  std::vector<std::int64_t> starts_{0};
  mutable std::once_flag documents_found_;
  mutable std::vector<std::int64_t> documents_;
};

}  // namespace

std::unique_ptr<TokenSet> open_llmc(const std::vector<Path>& shards) {
  return std::make_unique<LlmcTokenSet>(shards);
}

bool is_llmc_shard(const Path& path) {
  const Outcome<MappedFile> file = MappedFile::open(path);
  if (!file || std::ssize(file->bytes()) < 4) return false;
  return std::any_of(std::begin(kShardKinds), std::end(kShardKinds),
                     [&](const ShardKind& kind) { return header_word(*file, 0) == kind.magic; });
}

}  // namespace optimus
