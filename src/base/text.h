// Text utilities: splitting, case conversion, suggestions for misspelled names, aligned tables.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace optimus {

std::string_view trim(std::string_view text);
std::string lower(std::string_view text);
std::vector<std::string> split(std::string_view text, char separator);
std::string join(std::span<const std::string> parts, std::string_view separator);
bool starts_with(std::string_view text, std::string_view prefix);
bool ends_with(std::string_view text, std::string_view suffix);

// Maps each name to its index among the distinct names, in order of first occurrence: a, b, a -> 0, 1, 0.
std::vector<int> indices_of_distinct(std::span<const std::string> names);

// Returns the text in single quotes for an error message. Control bytes are escaped, so the result is always
// one line. Text longer than `limit` bytes is truncated.
std::string in_quotes(std::string_view text, std::size_t limit = 60);

// The candidate with the smallest edit distance to `word`, or "" if no candidate is close enough.
std::string nearest(std::string_view word, std::span<const std::string> candidates);
// "; did you mean 'model'?", or "" if no candidate is close enough.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

// Rows of cells in aligned columns: the first column is left-aligned, the others are right-aligned.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : rows_{std::move(header)} {}
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace optimus
