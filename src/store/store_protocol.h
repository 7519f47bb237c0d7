// What a StoreServer and its clients say to each other. A client's first line is its greeting with the run's token; the server
// answers kWelcome, or closes without a word. Then requests, each answered in order:
//
//   request:  what (1 byte)  size of key (4)  size of value (4)  key  value
//   answer:   kind (1 byte)  size (4)  bytes
//
// Numbers have the lowest byte first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace optimus::store_protocol {

inline constexpr std::string_view kGreeting = "optimus-store 1 ";  // the token and a new line follow
inline constexpr std::string_view kWelcome = "ok\n";
inline constexpr std::size_t kLongestGreeting = 512;
// kWill: what the server shall set, unless the key is there, when this connection ends; an empty key: nothing.
inline constexpr char kSet = 's', kFind = 'f', kCount = 'c', kWill = 'w';
inline constexpr char kValue = 'v', kNothing = 'n', kRefused = 'e';
inline constexpr std::size_t kRequestHeader = 9, kAnswerHeader = 5;
inline constexpr std::size_t kLongestKey = 4096, kLongestValue = std::size_t{64} << 20;

inline void put_size(std::string& bytes, std::size_t size) {
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(size >> shift & 0xff);
}
inline std::size_t size_at(std::string_view bytes, std::size_t at) {
  std::size_t size = 0;
  for (std::size_t i = 0; i < 4; ++i)
    size |= static_cast<std::size_t>(static_cast<unsigned char>(bytes[at + i])) << 8 * i;
  return size;
}

}  // namespace optimus::store_protocol
