// GPT-2's byte-level alphabet, which maps every byte to a printable character. Byte-level vocabularies spell
// their tokens in it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/unicode.h"

namespace optimus {

// The 256 characters, indexed by byte. Printable Latin-1 characters map to themselves, and the other 68 bytes
// map to U+0100 and above.
constexpr std::array<char32_t, 256> byte_alphabet() {
  std::array<char32_t, 256> result{};
  char32_t next = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    result[byte] = is_printable ? byte : next++;
  }
  return result;
}

// The bytes that a token represents, or nullopt if it contains a character outside the alphabet.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace optimus
