// See byte_alphabet.h.
#include "tokenizer/byte_alphabet.h"

namespace optimus {
namespace {

constexpr std::array<int, 0x144> bytes_by_character() {
  std::array<int, 0x144> result{};
  result.fill(-1);
  const auto alphabet = byte_alphabet();
  for (std::size_t byte = 0; byte < alphabet.size(); ++byte) result[alphabet[byte]] = static_cast<int>(byte);
  return result;
}

}  // namespace

std::optional<std::string> bytes_of_token(std::string_view token) {
  static constexpr auto kBytes = bytes_by_character();
  std::string result;
  result.reserve(token.size());
  for (std::size_t at = 0; at < token.size();) {
    const DecodedChar next = decode_char(token.data() + at);
    if (next.code_point >= kBytes.size() || kBytes[next.code_point] < 0) return std::nullopt;
    result.push_back(static_cast<char>(kBytes[next.code_point]));
    at += static_cast<std::size_t>(next.size);
  }
  return result;
}

}  // namespace optimus
