// Functions shared by all token sets, and the in-memory token set. The file formats are in megatron_file.cpp
// and llmc_file.cpp.
#include "data/token_set.h"

#include <algorithm>

namespace optimus {

std::int64_t TokenSet::document_of(std::int64_t position) const {
  ensure(position >= 0 && position < num_tokens(), "position {} is out of range for {} tokens", position,
         num_tokens());
  // Finds the last document that starts at or before the position. Empty documents before it may have the
  // same start.
  std::int64_t low = 0, high = num_documents();
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (document_start(middle) <= position ? low : high) = middle;
  }
  return low;
}

namespace {

class MemoryTokenSet final : public TokenSet {
 public:
  MemoryTokenSet(std::vector<TokenId> tokens, std::vector<std::int64_t> starts)
      : tokens_(std::move(tokens)), starts_(std::move(starts)) {
    ensure(std::is_sorted(starts_.begin(), starts_.end()), "expected document starts in ascending order");
    starts_.push_back(static_cast<std::int64_t>(tokens_.size()));
    ensure(starts_.front() == 0, "expected the first document to start at 0, got {}", starts_.front());
  }

  std::int64_t num_documents() const override { return static_cast<std::int64_t>(starts_.size()) - 1; }
  std::int64_t num_tokens() const override { return static_cast<std::int64_t>(tokens_.size()); }
  std::int64_t document_start(std::int64_t document) const override {
    return starts_[static_cast<std::size_t>(document)];
  }
  void read(std::int64_t start, std::span<TokenId> out) const override {
    std::copy_n(tokens_.begin() + start, out.size(), out.begin());
  }
  std::string dtype() const override { return "int32"; }

 private:
  std::vector<TokenId> tokens_;
  std::vector<std::int64_t> starts_;
};

}  // namespace

std::unique_ptr<TokenSet> tokens_in_memory(std::vector<TokenId> tokens,
                                           std::vector<std::int64_t> document_starts) {
  return std::make_unique<MemoryTokenSet>(std::move(tokens), std::move(document_starts));
}

}  // namespace optimus
