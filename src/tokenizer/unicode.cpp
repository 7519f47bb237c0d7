// See unicode.h.
#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace optimus {
namespace {

// The sequence at the start of a non-empty byte string: either a valid character or invalid bytes, which are
// replaced.
struct LeadingSequence {
  std::size_t size;
  bool is_valid;
};

LeadingSequence leading_sequence(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned first = at(0);
  if (first < 0x80) return {1, true};
  if (first < 0xC2 || first > 0xF4) return {1, false};
  const std::size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // Checking the range of the second byte is enough to exclude overlong forms, surrogates and values above
  // U+10FFFF.
  const unsigned smallest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned largest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (bytes.size() < 2 || at(1) < smallest || at(1) > largest) return {1, false};
  for (std::size_t i = 2; i < size; ++i)
    if (i >= bytes.size() || (at(i) & 0xC0) != 0x80) return {i, false};
  return {size, true};
}

// A lower bound on the number of leading ASCII bytes, counted in blocks of 8.
std::size_t ascii_prefix_size(std::string_view text) {
  std::size_t size = 0;
  for (std::uint64_t block = 0; size + 8 <= text.size(); size += 8) {
    std::memcpy(&block, text.data() + size, 8);
    if ((block & 0x8080808080808080ULL) != 0) break;
  }
  return size;
}

// Capital letters that the utf8proc versions of some distributions do not know yet.
struct NewCapitals {
  CodePoint first, last, lower_of_first;
};
constexpr NewCapitals kNewCapitals[] = {{0x1C89, 0x1C89, 0x1C8A},    {0xA7CB, 0xA7CB, 0x264},
                                        {0xA7CC, 0xA7CC, 0xA7CD},    {0xA7CE, 0xA7CE, 0xA7CF},
                                        {0xA7D2, 0xA7D2, 0xA7D3},    {0xA7D4, 0xA7D4, 0xA7D5},
                                        {0xA7DA, 0xA7DA, 0xA7DB},    {0xA7DC, 0xA7DC, 0x19B},
                                        {0x10D50, 0x10D65, 0x10D70}, {0x16EA0, 0x16EB8, 0x16EBB}};

}  // namespace

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    text.remove_prefix(ascii_prefix_size(text));
    if (text.empty()) break;
    const LeadingSequence front = leading_sequence(text);
    if (!front.is_valid) return false;
    text.remove_prefix(front.size);
  }
  return true;
}

std::string repair_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size() + text.size() / 8);
  while (!text.empty()) {
    const LeadingSequence front = leading_sequence(text);
    if (front.is_valid)
      result.append(text.substr(0, front.size));
    else
      append_utf8(kReplacementCharacter, result);
    text.remove_prefix(front.size);
  }
  return result;
}

void append_utf8(CodePoint code_point, std::string& out) {
  const auto append_byte = [&](CodePoint byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    append_byte(code_point);
    return;
  }
  if (code_point < 0x800) {
    append_byte(0xC0 | (code_point >> 6));
  } else if (code_point < 0x10000) {
    append_byte(0xE0 | (code_point >> 12));
    append_byte(0x80 | ((code_point >> 6) & 0x3F));
  } else {
    append_byte(0xF0 | (code_point >> 18));
    append_byte(0x80 | ((code_point >> 12) & 0x3F));
    append_byte(0x80 | ((code_point >> 6) & 0x3F));
  }
  append_byte(0x80 | (code_point & 0x3F));
}

DecodedChar decode_last_char(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return decode_char(text.data() + begin);
}

CharClasses::CharClasses() : classes_(kNumCodePoints) {
  struct ChangePoint {
    CodePoint first;
    std::uint16_t classes;
  };
  static constexpr ChangePoint kChangePoints[] = {
#include "tokenizer/unicode_classes.inc"
  };
  for (std::size_t i = 0; i < std::size(kChangePoints); ++i) {
    const std::size_t end = i + 1 < std::size(kChangePoints) ? kChangePoints[i + 1].first : kNumCodePoints;
    std::fill(classes_.begin() + kChangePoints[i].first, classes_.begin() + static_cast<std::ptrdiff_t>(end),
              kChangePoints[i].classes);
  }
}

bool is_chinese_character(CodePoint c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
         (c >= 0x2F800 && c <= 0x2FA1F);
}

void append_lower(CodePoint code_point, std::string& out) {
  if (code_point < 0x80) {
    out.push_back(static_cast<char>(code_point >= 'A' && code_point <= 'Z' ? code_point + 32 : code_point));
    return;
  }
  // The only character whose lower case has two characters: i and a combining dot above.
  if (code_point == 0x130) {
    out += "i\xCC\x87";
    return;
  }
  for (const NewCapitals& capitals : kNewCapitals)
    if (code_point >= capitals.first && code_point <= capitals.last)
      return append_utf8(capitals.lower_of_first + (code_point - capitals.first), out);
  append_utf8(static_cast<CodePoint>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point))), out);
}

}  // namespace optimus
