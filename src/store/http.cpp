// See http.h.
#include "store/http.h"

#include <fmt/format.h>

#include <charconv>

#include "base/text.h"

namespace optimus {
namespace {

constexpr std::size_t kMaxHeadBytes = 1 << 14, kMaxBodyBytes = std::size_t{96} << 20;
constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Reads lines and byte blocks from a connection and buffers bytes that were received early.
class HttpReader {
 public:
  HttpReader(Socket& socket, const Deadline& deadline) : socket_(socket), deadline_(deadline) {}

  // Reads a line, without its line break.
  Outcome<std::string> line() {
    while (true) {
      if (const std::size_t end = buffer_.find("\r\n"); end != std::string::npos) {
        std::string result = buffer_.substr(0, end);
        buffer_.erase(0, end + 2);
        return result;
      }
      if (buffer_.size() > kMaxHeadBytes) return failure("a header line is too long");
      if (const auto more = read_more(); !more) return tl::unexpected(more.error());
    }
  }
  Outcome<std::string> bytes(std::size_t size) {
    while (buffer_.size() < size)
      if (const auto more = read_more(); !more) return tl::unexpected(more.error());
    std::string result = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return result;
  }
  bool is_empty() const { return buffer_.empty(); }

 private:
  Outcome<void> read_more() {
    const auto received = socket_.receive_some(1 << 16, deadline_);
    if (!received) return tl::unexpected(received.error());
    if (received->empty()) return failure("the peer closed the connection");
    buffer_ += *received;
    return {};
  }
  Socket& socket_;
  const Deadline& deadline_;
  std::string buffer_;
};

Outcome<std::size_t> http_size(std::string_view text, int base) {
  std::size_t size = 0;
  text = trim(text);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size, base);
  if (error != std::errc() || size > kMaxBodyBytes)
    return failure("invalid body size {}", in_quotes(text, 20));
  return size;
}

struct HttpHead {
  int status = 0;
  bool is_chunked = false;
  std::size_t size = 0;
};

Outcome<HttpHead> read_head(HttpReader& reader) {
  HttpHead head;
  const auto status_line = reader.line();
  if (!status_line) return tl::unexpected(status_line.error());
  if (!starts_with(*status_line, "HTTP/1.") || status_line->size() < 12)
    return failure("the response is not HTTP");
  std::from_chars(status_line->data() + 9, status_line->data() + 12, head.status);
  for (std::size_t total = 0; total < kMaxHeadBytes;) {
    const auto header_line = reader.line();
    if (!header_line) return tl::unexpected(header_line.error());
    if (header_line->empty()) return head;
    total += header_line->size() + 2;
    const std::size_t colon = header_line->find(':');
    if (colon == std::string::npos) return failure("the response is not HTTP");
    const std::string name = lower(header_line->substr(0, colon)),
                      value = lower(trim(header_line->substr(colon + 1)));
    if (name == "transfer-encoding") head.is_chunked = value == "chunked";
    if (name != "content-length") continue;
    const auto size = http_size(value, 10);
    if (!size) return tl::unexpected(size.error());
    head.size = *size;
  }
  return failure("the header is larger than {} bytes", kMaxHeadBytes);
}

Outcome<std::string> read_chunks(HttpReader& reader) {
  std::string body;
  while (true) {
    const auto line = reader.line();
    if (!line) return line;
    const auto size = http_size(line->substr(0, line->find(';')), 16);
    if (!size) return tl::unexpected(size.error());
    if (body.size() + *size > kMaxBodyBytes)
      return failure("the body is larger than {} bytes", kMaxBodyBytes);
    const auto chunk = reader.bytes(*size);
    if (!chunk) return chunk;
    body += *chunk;
    if (const auto end = reader.line(); !end) return end;
    if (*size == 0) return body;
  }
}

}  // namespace

Outcome<HttpResponse> read_http_response(Socket& socket, const Deadline& deadline) {
  HttpReader reader(socket, deadline);
  const Outcome<HttpHead> head = read_head(reader);
  if (!head) return tl::unexpected(head.error());
  Outcome<std::string> body = head->is_chunked ? read_chunks(reader) : reader.bytes(head->size);
  if (!body) return tl::unexpected(body.error());
  if (!reader.is_empty()) return failure("the response is longer than its Content-Length");
  return HttpResponse{head->status, std::move(*body)};
}

std::string http_get(const std::string& host, const std::string& path) {
  return fmt::format(
      "GET {} HTTP/1.1\r\nHost: {}\r\nMetadata-Flavor: Google\r\nMetadata: true\r\nConnection: close\r\n\r\n",
      path, host);
}

std::string http_post(const std::string& host, const std::string& path, const std::string& body) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}", path,
      host, body.size(), body);
}

std::string to_base64(std::string_view bytes) {
  std::string result;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    unsigned group = 0;
    for (std::size_t j = 0; j < 3; ++j)
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    for (std::size_t j = 0; j < 4; ++j)
      result += i + j > bytes.size() ? '=' : kDigits[group >> (18 - 6 * j) & 63];
  }
  return result;
}

Outcome<std::string> from_base64(std::string_view text) {
  std::string result;
  unsigned group = 0;
  int num_bits = 0;
  for (const char c : text.substr(0, text.find('='))) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return failure("{} is not base64", in_quotes(text));
    group = group << 6 | static_cast<unsigned>(digit), num_bits += 6;
    if (num_bits >= 8) result += static_cast<char>(group >> (num_bits -= 8) & 0xff);
  }
  return result;
}

}  // namespace optimus
