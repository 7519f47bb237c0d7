// GPT-2's way to write any byte as a printable character: tokens of byte-level vocabularies are written so.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/unicode.h"

namespace optimus {

// The 256 characters, by byte: printable Latin-1 stands for itself, the other 68 bytes are U+0100 and up.
constexpr std::array<char32_t, 256> byte_alphabet() {
  std::array<char32_t, 256> result{};
  char32_t next = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    result[byte] = is_printable ? byte : next++;
  }
  return result;
}

// The bytes that a token stands for; nothing when a character is not of the alphabet.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace optimus
