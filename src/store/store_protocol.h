// The protocol between a StoreServer and its clients. A client first sends a greeting, which is a line with
// the token of the run. The server replies with kAccepted or closes the connection without a reply. After
// that, the client sends requests, and the server responds to them in order:
//
//   request:  operation (1 byte)  size of key (4)  size of value (4)  key  value
//   response: kind (1 byte)  size (4)  bytes
//
// Numbers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace optimus::store_protocol {

inline constexpr std::string_view kGreeting = "optimus-store 1 ";  // followed by the token and a newline
inline constexpr std::string_view kAccepted = "ok\n";
inline constexpr std::size_t kMaxGreetingBytes = 512;
// kWill registers the key and value that the server sets when this connection ends, unless the key exists. An
// empty key removes the last-will.
inline constexpr char kSet = 's', kFind = 'f', kCount = 'c', kWill = 'w';
inline constexpr char kValue = 'v', kNothing = 'n', kRejected = 'e';
inline constexpr std::size_t kRequestHeader = 9, kAnswerHeader = 5;
inline constexpr std::size_t kMaxKeyBytes = 4096, kMaxValueBytes = std::size_t{64} << 20;

inline void put_size(std::string& bytes, std::size_t size) {
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(size >> shift & 0xff);
}
inline std::size_t size_at(std::string_view bytes, std::size_t offset) {
  std::size_t size = 0;
  for (std::size_t i = 0; i < 4; ++i)
    size |= static_cast<std::size_t>(static_cast<unsigned char>(bytes[offset + i])) << 8 * i;
  return size;
}

}  // namespace optimus::store_protocol
