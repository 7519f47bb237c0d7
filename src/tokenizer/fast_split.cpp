// Implements fast_split.h. Each function tries the alternatives of its pattern in order.
#include "tokenizer/fast_split.h"

namespace optimus {
namespace {

constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::uint16_t kNotOther = kLetter | kNumber | kSpace;

// Reads the rest of a text character by character.
class Reader {
 public:
  Reader(const char* begin, const char* end, const CharClasses& classes)
      : offset_(begin), end_(end), classes_(&classes) {}

  const char* at() const { return offset_; }
  bool is_done() const { return offset_ == end_; }
  // The classes of the next character, or 0 at the end of the text.
  std::uint16_t peek() const { return is_done() ? 0 : classes_->of(decode_char(offset_).code_point); }
  bool next_is(char ascii) const { return !is_done() && *offset_ == ascii; }
  bool next_is_newline() const { return next_is('\n') || next_is('\r'); }
  bool next_is_other() const { return !is_done() && (peek() & kNotOther) == 0; }
  void skip() { offset_ += decode_char(offset_).size; }

  void skip_all(std::uint16_t any_of) {
    while (!is_done()) {
      const DecodedChar next = decode_char(offset_);
      if (!classes_->is(next.code_point, any_of)) return;
      offset_ += next.size;
    }
  }
  void skip_others() {
    while (!is_done()) {
      const DecodedChar next = decode_char(offset_);
      if (classes_->is(next.code_point, kNotOther)) return;
      offset_ += next.size;
    }
  }

 private:
  const char* offset_;
  const char* end_;
  const CharClasses* classes_;
};

// Returns the end of a contraction ('s 't 'm 'd 're 've 'll), or nullptr if there is none. `begin` points to
// the apostrophe.
const char* contraction_end(const char* begin, const char* end, bool ignore_case) {
  const auto letter = [&](int i) -> char {
    if (end - begin <= i) return '\0';
    const char c = begin[i];
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = letter(1), second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return begin + 2;
  if (first == 'r' && second == 'e') return begin + 3;
  if (first == 'v' && second == 'e') return begin + 3;
  if (first == 'l' && second == 'l') return begin + 3;
  // The long s (U+017F) matches s if case is ignored.
  if (ignore_case && first == '\xC5' && second == '\xBF') return begin + 3;
  return nullptr;
}

// \s+(?!\S)|\s+ : all spaces, except that the last one belongs to the word that follows, if any.
const char* spaces_end(const char* begin, Reader reader) {
  const char* last = begin;
  while ((reader.peek() & kSpace) != 0) {
    last = reader.at();
    reader.skip();
  }
  return reader.is_done() || last == begin ? reader.at() : last;
}

const char* gpt2_end(const char* begin, const char* end, const CharClasses& classes) {
  if (*begin == '\'')
    if (const char* contraction = contraction_end(begin, end, false)) return contraction;
  Reader reader(begin, end, classes);
  if (*begin == ' ') reader.skip();
  const std::uint16_t next = reader.peek();
  if ((next & kLetter) != 0) {
    reader.skip_all(kLetter);
  } else if ((next & kNumber) != 0) {
    reader.skip_all(kNumber);
  } else if (reader.next_is_other()) {
    reader.skip_others();
  } else {
    return spaces_end(begin, Reader(begin, end, classes));
  }
  return reader.at();
}

// \s*[\r\n]+ : all spaces up to the last line break. Without a line break, the same as spaces_end().
const char* lines_or_spaces_end(const char* begin, const char* end, const CharClasses& classes) {
  Reader reader(begin, end, classes);
  const char* after_newline = nullptr;
  while ((reader.peek() & kSpace) != 0) {
    const bool is_newline = reader.next_is_newline();
    reader.skip();
    if (is_newline) after_newline = reader.at();
  }
  return after_newline != nullptr ? after_newline : spaces_end(begin, Reader(begin, end, classes));
}

const char* llama3_end(const char* begin, const char* end, const CharClasses& classes, int max_digits) {
  if (*begin == '\'')
    if (const char* contraction = contraction_end(begin, end, true)) return contraction;
  Reader reader(begin, end, classes);
  const std::uint16_t first = reader.peek();
  if ((first & kNumber) != 0) {
    for (int i = 0; i < max_digits && (reader.peek() & kNumber) != 0; ++i) reader.skip();
    return reader.at();
  }
  if ((first & kLetter) == 0 && !reader.next_is_newline()) reader.skip();
  if ((reader.peek() & kLetter) != 0) {
    reader.skip_all(kLetter);
    return reader.at();
  }
  reader = Reader(begin, end, classes);
  if (*begin == ' ') reader.skip();
  if (!reader.next_is_other()) return lines_or_spaces_end(begin, end, classes);
  reader.skip_others();
  while (reader.next_is_newline()) reader.skip();
  return reader.at();
}

}  // namespace

std::string_view regex_of(FastPattern pattern) {
  switch (pattern) {
    case FastPattern::kGpt2:
      return kGpt2Regex;
    case FastPattern::kLlama3:
      return kLlama3Regex;
    case FastPattern::kQwen2:
      return kQwen2Regex;
  }
  return {};
}

std::optional<FastPattern> find_fast_pattern(std::string_view regex) {
  for (const FastPattern pattern : {FastPattern::kGpt2, FastPattern::kLlama3, FastPattern::kQwen2})
    if (regex_of(pattern) == regex) return pattern;
  return std::nullopt;
}

const char* piece_end(FastPattern pattern, const char* begin, const char* end, const CharClasses& classes) {
  switch (pattern) {
    case FastPattern::kGpt2:
      return gpt2_end(begin, end, classes);
    case FastPattern::kLlama3:
      return llama3_end(begin, end, classes, 3);
    case FastPattern::kQwen2:
      return llama3_end(begin, end, classes, 1);
  }
  return end;
}

}  // namespace optimus
