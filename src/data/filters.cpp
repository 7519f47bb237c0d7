// See filters.h.
#include "data/filters.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "data/documents.h"

namespace optimus {

void declare(OptionTable& table, FilterOptions& options) {
  table.add("min-tokens", options.min_tokens, "N",
            "drop documents with fewer tokens than this (large corpora use 128)");
  table.add("dedup", options.dedup, "drop duplicate documents");
  table.add("exclude", options.exclude, "FILE",
            "drop documents that occur in these held-out texts (text, jsonl or folder)");
  table.add("exclude-words", options.overlap_words, "N",
            "number of consecutive words that a document must share with a held-out text to be dropped "
            "(0: drop only documents that are equal to a held-out text)");
}

Fingerprint fingerprint(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.high64, hash.low64};
}

namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> normalized_words;
  for (std::size_t at = 0; at < text.size();) {
    while (at < text.size() && is_space(text[at])) ++at;
    const std::size_t begin = at;
    while (at < text.size() && !is_space(text[at])) ++at;
    if (at > begin) normalized_words.push_back(text.substr(begin, at - begin));
  }
  return normalized_words;
}

// Combines the hashes of words. A window then hashes only num_words integers, and white space does not
// matter.
Fingerprint combine(std::span<const std::uint64_t> hashes) {
  const XXH128_hash_t hash = XXH3_128bits(hashes.data(), hashes.size_bytes());
  return {hash.high64, hash.low64};
}

std::vector<std::uint64_t> word_hashes(std::string_view text) {
  std::vector<std::uint64_t> hashes;
  for (const std::string_view word : words_of(text)) hashes.push_back(XXH3_64bits(word.data(), word.size()));
  return hashes;
}

}  // namespace

HeldOut::HeldOut(const std::vector<Path>& inputs, const std::string& text_key, std::int64_t num_words,
                 EventSink& events)
    : num_words_(num_words) {
  for (const Path& input : inputs) {
    DocumentReader reader({input}, events);
    bool has_words = false;
    while (const auto document = reader.next()) has_words |= add(text_of(*document, text_key));
    if (!has_words)
      events.report(
          Warning{fmt::format("--exclude: {} contains no words, so it excludes nothing", input.string())});
  }
}

bool HeldOut::add(std::string_view text) {
  const std::vector<std::uint64_t> hashes = word_hashes(text);
  if (hashes.empty()) return false;
  documents_.insert(combine(hashes));
  const auto window = static_cast<std::size_t>(num_words_);
  for (std::size_t i = 0; window > 0 && i + window <= hashes.size(); ++i)
    windows_.insert(combine(std::span(hashes).subspan(i, window)));
  return true;
}

bool HeldOut::contains(std::string_view text) const {
  if (is_empty()) return false;
  const std::vector<std::uint64_t> hashes = word_hashes(text);
  if (hashes.empty()) return false;
  if (documents_.contains(combine(hashes))) return true;
  const auto window = static_cast<std::size_t>(num_words_);
  for (std::size_t i = 0; window > 0 && i + window <= hashes.size(); ++i)
    if (windows_.contains(combine(std::span(hashes).subspan(i, window)))) return true;
  return false;
}

}  // namespace optimus
