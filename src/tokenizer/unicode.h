// UTF-8 conversion, and the classes of code points that tokenizers need.
//
// The classes are the same as in the tokenizers library, from which tests/parity/unicode_classes.py extracts
// them. They do not depend on the Unicode tables of the operating system. Normal forms are in normalizer.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace optimus {

using CodePoint = char32_t;

inline constexpr CodePoint kReplacementCharacter = 0xFFFD;
inline constexpr std::size_t kNumCodePoints = 0x110000;

bool is_valid_utf8(std::string_view text);
// Replaces each maximal invalid subsequence of bytes with one U+FFFD, as Python's bytes.decode("utf-8",
// errors="replace") and Rust's String::from_utf8_lossy do.
std::string repair_utf8(std::string_view text);

void append_utf8(CodePoint code_point, std::string& out);

struct DecodedChar {
  CodePoint code_point;
  int size;  // in bytes
};

// The first character of a valid, non-empty UTF-8 string.
inline DecodedChar decode_char(const char* at) {
  const auto byte = [at](int i) { return static_cast<CodePoint>(static_cast<unsigned char>(at[i])); };
  const CodePoint first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {((first & 0x1F) << 6) | (byte(1) & 0x3F), 2};
  if (first < 0xF0) return {((first & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F), 3};
  return {((first & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F), 4};
}

// The last character of a valid, non-empty UTF-8 string.
DecodedChar decode_last_char(std::string_view text);

// Must match tests/parity/unicode_classes.py.
enum CharClass : std::uint16_t {
  kLetter = 1,          // \p{L}
  kNumber = 2,          // \p{N}
  kSpace = 4,           // \s
  kWord = 8,            // \w
  kPunctuation = 16,    // characters that BERT's pre-tokenizer isolates
  kControl = 32,        // characters that BERT's normalizer removes
  kAccent = 64,         // characters that BERT's normalizer strips after decomposition
  kNfcUnstable = 128,   // may change, move or combine with its left neighbor under NFC
  kNfdUnstable = 256,   // may change or move under NFD
  kNfkdUnstable = 512,  // may change or move under NFKD
  kDigit = 1024,  // characters that the Digits pre-tokenizer treats as digits: kNumber and some newer digits
};

// A table of the classes of all code points (2 MiB, built in less than a millisecond). It is immutable after
// construction and therefore thread-safe.
class CharClasses {
 public:
  CharClasses();
  std::uint16_t of(CodePoint code_point) const { return classes_[code_point]; }
  bool is(CodePoint code_point, std::uint16_t any_of) const { return (classes_[code_point] & any_of) != 0; }

 private:
  std::vector<std::uint16_t> classes_;
};

bool is_chinese_character(CodePoint code_point);

// Appends the lower case of one character. For U+0130, it has two characters.
void append_lower(CodePoint code_point, std::string& out);

}  // namespace optimus
