// Filters that drop documents from large corpora: short documents, duplicates and documents in a held-out
// set.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/event.h"
#include "base/file.h"
#include "base/options.h"

namespace optimus {

struct FilterOptions {
  std::int64_t min_tokens = 0;
  bool dedup = false;
  std::vector<std::string> exclude;
  std::int64_t overlap_words = 13;
};
void declare(OptionTable& table, FilterOptions& options);

// A 128-bit hash. The probability of a collision among 10^12 different documents is about 10^-15.
struct Fingerprint {
  std::uint64_t high = 0, low = 0;
  bool operator==(const Fingerprint&) const = default;
};
struct FingerprintHash {
  std::size_t operator()(const Fingerprint& print) const { return print.low; }
};
using FingerprintSet = std::unordered_set<Fingerprint, FingerprintHash>;

Fingerprint fingerprint(std::string_view text);

// Texts that must not be used for training. A document matches if it equals a held-out document or, unless
// `num_words` is 0, shares `num_words` consecutive words with a held-out document. A run of white space
// counts as one space. An input without words causes a warning, because it is probably a mistake.
class HeldOut {
 public:
  HeldOut() = default;
  HeldOut(const std::vector<Path>& inputs, const std::string& text_key, std::int64_t num_words,
          EventSink& events);
  bool contains(std::string_view text) const;
  bool is_empty() const { return documents_.empty(); }

 private:
  bool add(std::string_view text);  // returns false if the text has no words

  std::int64_t num_words_ = 0;
  FingerprintSet documents_, windows_;
};

}  // namespace optimus
