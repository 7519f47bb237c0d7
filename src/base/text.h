// Small things done with text: splitting, case, nearest names for typing errors, aligned tables.
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

// The number of each word among the different ones, in the order in which they first come.
std::vector<int> numbered(std::span<const std::string> words);

// For error messages: the text in quotes, control bytes escaped, cut after `limit` bytes. Always one line.
std::string in_quotes(std::string_view text, std::size_t limit = 60);

// The candidate with the smallest edit distance to `word`, or "" when nothing is close enough to be meant.
std::string nearest(std::string_view word, std::span<const std::string> candidates);
// "; did you mean 'model'?" or "" when nothing is near.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

// Rows of cells, columns aligned: the first column to the left, the others to the right.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : rows_{std::move(header)} {}
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace optimus
