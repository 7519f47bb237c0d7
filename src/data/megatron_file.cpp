// Reads and writes Megatron-LM's .bin/.idx files. The format is little-endian and is read through mmap. Every
// size is checked before it is used.
#include "data/megatron_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "base/text.h"

namespace optimus {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian and are read in place");

Path with_extension(const Path& prefix, std::string_view extension) {
  Path result = prefix;
  result += extension;
  return result;
}

TokenType token_type_for(std::int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::uint16 : TokenType::int32;
}

std::string_view text(TokenType type) {
  switch (type) {
    case TokenType::uint8:
      return "uint8";
    case TokenType::int8:
      return "int8";
    case TokenType::int16:
      return "int16";
    case TokenType::int32:
      return "int32";
    case TokenType::int64:
      return "int64";
    case TokenType::uint16:
      return "uint16";
  }
  return "";
}

namespace {

std::int64_t bytes_per_token(TokenType type) {
  switch (type) {
    case TokenType::uint8:
    case TokenType::int8:
      return 1;
    case TokenType::int16:
    case TokenType::uint16:
      return 2;
    case TokenType::int32:
      return 4;
    case TokenType::int64:
      return 8;
  }
  return 0;
}

template <typename Number>
Number load(std::span<const std::byte> bytes, std::int64_t offset) {
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof(Number));
  return number;
}

template <typename Stored>
void widen(const std::byte* from, std::span<TokenId> out) {
  for (TokenId& token : out) {
    Stored stored;
    std::memcpy(&stored, from, sizeof(Stored));
    from += sizeof(Stored);
    // A value outside the range of TokenId becomes -1, which every vocabulary check rejects.
    token = std::in_range<TokenId>(stored) ? static_cast<TokenId>(stored) : -1;
  }
}

struct IndexHeader {
  TokenType type;
  std::int64_t num_sequences, num_bounds;
};

// Reads the index file. Error messages have the form "X.idx: byte 18: …".
class MegatronIndex {
 public:
  MegatronIndex(const MappedFile& file, std::string name) : bytes_(file.bytes()), name_(std::move(name)) {}

  IndexHeader header() const {
    const auto size = static_cast<std::int64_t>(bytes_.size());
    if (size < kMegatronHeaderBytes)
      throw UserError("{}: expected a token index of at least {} bytes, got {}", name_, kMegatronHeaderBytes,
                      size);
    if (std::memcmp(bytes_.data(), kMegatronMagic.data(), kMegatronMagic.size()) != 0)
      throw UserError("{}: byte 0: not a token index: expected MMIDIDX", name_);
    if (const auto version = load<std::uint64_t>(bytes_, 9); version != kMegatronVersion)
      throw UserError("{}: byte 9: version {} is not supported; expected version 1", name_, version);
    const auto code = load<std::uint8_t>(bytes_, 17);
    if (code < 1 || code > 8 || code == 6 || code == 7)
      throw UserError("{}: byte 17: expected element type 1, 2, 3, 4, 5 or 8, got {}", name_, code);
    const auto sequences = load<std::uint64_t>(bytes_, 18), bounds = load<std::uint64_t>(bytes_, 26);
    // The counts are first checked by division, so that a wrong count cannot overflow the multiplication.
    const auto available = static_cast<std::uint64_t>(size - kMegatronHeaderBytes);
    if (sequences > available / 12 || bounds > available / 8 || 12 * sequences + 8 * bounds > available)
      throw UserError("{}: byte 18: {} sequences and {} document bounds do not fit into {} bytes", name_,
                      sequences, bounds, size);
    // Multimodal datasets append one byte per sequence.
    const std::uint64_t remainder = available - 12 * sequences - 8 * bounds;
    if (remainder != 0 && remainder != sequences)
      throw UserError("{}: the file is {} bytes too long for {} sequences and {} document bounds", name_,
                      remainder, sequences, bounds);
    return {static_cast<TokenType>(code), static_cast<std::int64_t>(sequences),
            static_cast<std::int64_t>(bounds)};
  }

  std::int32_t length(std::int64_t sequence) const {
    return load<std::int32_t>(bytes_, kMegatronHeaderBytes + 4 * sequence);
  }
  std::int64_t offset(const IndexHeader& header, std::int64_t sequence) const {
    return load<std::int64_t>(bytes_, kMegatronHeaderBytes + 4 * header.num_sequences + 8 * sequence);
  }
  std::int64_t bound(const IndexHeader& header, std::int64_t document) const {
    return load<std::int64_t>(bytes_, kMegatronHeaderBytes + 12 * header.num_sequences + 8 * document);
  }
  const std::string& name() const { return name_; }

 private:
  std::span<const std::byte> bytes_;
  std::string name_;
};

// A token set whose sequences are in index order. Several sequences may form one document.
class MegatronTokenSet final : public TokenSet {
 public:
  explicit MegatronTokenSet(const Path& prefix) {
    const Path index_path = with_extension(prefix, ".idx"), bin_path = with_extension(prefix, ".bin");
    const MappedFile index_file = value_or_throw(MappedFile::open(index_path));
    bin_ = value_or_throw(MappedFile::open(bin_path));
    const MegatronIndex index(index_file, index_path.string());
    const IndexHeader header = index.header();
    type_ = header.type;
    read_sequences(index, header, bin_path.string());
    read_documents(index, header);
  }

  std::int64_t num_documents() const override {
    return static_cast<std::int64_t>(document_starts_.size()) - 1;
  }
  std::int64_t num_tokens() const override { return starts_.back(); }
  std::int64_t document_start(std::int64_t document) const override {
    return document_starts_[static_cast<std::size_t>(document)];
  }
  std::string dtype() const override { return std::string(text(type_)); }

  void read(std::int64_t start, std::span<TokenId> out) const override {
    if (is_contiguous_) return read_stored(start * bytes_per_token(type_), out);
    auto sequence =
        static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), start) - starts_.begin()) -
        1;
    while (!out.empty()) {
      const std::int64_t num_in_sequence =
          std::min<std::int64_t>(starts_[sequence + 1] - start, std::ssize(out));
      const std::int64_t offset_in_sequence = start - starts_[sequence];
      read_stored(offsets_[sequence] + offset_in_sequence * bytes_per_token(type_),
                  out.first(static_cast<std::size_t>(num_in_sequence)));
      out = out.subspan(static_cast<std::size_t>(num_in_sequence));
      start += num_in_sequence, ++sequence;
    }
  }

 private:
  void read_sequences(const MegatronIndex& index, const IndexHeader& header, const std::string& bin_name) {
    const std::int64_t width = bytes_per_token(header.type), bin_size = std::ssize(bin_.bytes());
    starts_.reserve(static_cast<std::size_t>(header.num_sequences) + 1);
    starts_.push_back(0);
    for (std::int64_t s = 0; s < header.num_sequences; ++s) {
      const std::int64_t length = index.length(s), offset = index.offset(header, s);
      if (length < 0)
        throw UserError("{}: sequence {}: expected a non-negative length, got {}", index.name(), s, length);
      if (offset < 0 || offset > bin_size || length > (bin_size - offset) / width)
        throw UserError("{}: sequence {} ({} tokens at byte {}) lies outside {}, which has {} bytes",
                        index.name(), s, length, offset, bin_name, bin_size);
      is_contiguous_ = is_contiguous_ && offset == starts_.back() * width;
      offsets_.push_back(offset);
      starts_.push_back(starts_.back() + length);
    }
    if (is_contiguous_) offsets_ = {};
  }

  void read_documents(const MegatronIndex& index, const IndexHeader& header) {
    std::int64_t previous = 0;
    for (std::int64_t d = 0; d < header.num_bounds; ++d) {
      const std::int64_t bound = index.bound(header, d);
      if ((d == 0 && bound != 0) || bound < previous || bound > header.num_sequences)
        throw UserError("{}: document bound {}: expected {} to {}, got {}", index.name(), d, previous,
                        d == 0 ? 0 : header.num_sequences, bound);
      document_starts_.push_back(starts_[static_cast<std::size_t>(bound)]);
      previous = bound;
    }
    if (header.num_bounds == 0)
      document_starts_ = starts_;  // in the old format, each sequence is a document
    else if (previous != header.num_sequences)
      throw UserError("{}: last document bound: expected {} (the number of sequences), got {}", index.name(),
                      header.num_sequences, previous);
  }

  void read_stored(std::int64_t byte, std::span<TokenId> out) const {
    const std::byte* const from = bin_.bytes().data() + byte;
    switch (type_) {
      case TokenType::uint8:
        return widen<std::uint8_t>(from, out);
      case TokenType::int8:
        return widen<std::int8_t>(from, out);
      case TokenType::int16:
        return widen<std::int16_t>(from, out);
      case TokenType::int32:
        return widen<std::int32_t>(from, out);
      case TokenType::int64:
        return widen<std::int64_t>(from, out);
      case TokenType::uint16:
        return widen<std::uint16_t>(from, out);
    }
  }

  MappedFile bin_;
  TokenType type_ = TokenType::uint16;
  bool is_contiguous_ = true;
  std::vector<std::int64_t> starts_;   // stream position of each sequence, then the end of the stream
  std::vector<std::int64_t> offsets_;  // file offset of each sequence; empty if contiguous
  std::vector<std::int64_t> document_starts_;
};

}  // namespace

std::unique_ptr<TokenSet> open_megatron(const Path& prefix) {
  return std::make_unique<MegatronTokenSet>(prefix);
}

Outcome<MegatronWriter> MegatronWriter::create(FileSystem& files, const Path& prefix, TokenType type) {
  ensure(type == TokenType::uint16 || type == TokenType::int32,
         "expected uint16 or int32 as the type of token files");
  Outcome<AtomicFile> bin = AtomicFile::create(files, with_extension(prefix, ".bin"));
  if (!bin) return tl::unexpected(bin.error());
  return MegatronWriter(files, prefix, type, std::move(*bin));
}

Outcome<void> MegatronWriter::add(std::span<const TokenId> tokens) {
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    return failure("{}: a document has {} tokens, but the format supports at most {}; split the document",
                   prefix_.string(), tokens.size(), std::numeric_limits<std::int32_t>::max());
  lengths_.push_back(static_cast<std::int32_t>(tokens.size()));
  num_tokens_ += std::ssize(tokens);
  if (type_ == TokenType::int32) return bin_.write(std::as_bytes(tokens));
  buffer_.resize(2 * tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto stored_token = static_cast<std::uint16_t>(tokens[i]);
    std::memcpy(buffer_.data() + 2 * i, &stored_token, 2);
  }
  return bin_.write(buffer_);
}

Outcome<void> MegatronWriter::finish() {
  std::string index(kMegatronMagic);
  const auto append_number = [&index](auto number) {
    index.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  append_number(kMegatronVersion);
  append_number(static_cast<std::uint8_t>(type_));
  append_number(static_cast<std::uint64_t>(lengths_.size()));
  append_number(static_cast<std::uint64_t>(lengths_.size() + 1));
  for (const std::int32_t length : lengths_) append_number(length);
  std::int64_t offset = 0;
  for (const std::int32_t length : lengths_)
    append_number(std::exchange(offset, offset + length * bytes_per_token(type_)));
  for (std::int64_t bound = 0; bound <= std::ssize(lengths_); ++bound) append_number(bound);

  const Path index_path = with_extension(prefix_, ".idx");
  Outcome<AtomicFile> index_file = AtomicFile::create(*files_, index_path);
  if (!index_file) return tl::unexpected(index_file.error());
  if (Outcome<void> result = index_file->write(index); !result) return result;
  if (Outcome<void> result = files_->remove(index_path); !result) return result;
  if (Outcome<void> result = bin_.commit(); !result) return result;
  return index_file->commit();
}

}  // namespace optimus
