// TCP sockets with deadlines: connections whose calls never block past a deadline, and listening sockets. The
// protocols are implemented in tcp_store.cpp, etcd_store.cpp and store_server.cpp.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"

namespace optimus {

// A TCP connection. The destructor closes it. Not thread-safe.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int handle) : handle_(handle) {}
  Socket(Socket&& other) noexcept : handle_(std::exchange(other.handle_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Socket();

  // Connects in a single attempt. Name resolution may take as long as the system's resolver needs,
  // regardless of the deadline.
  static Outcome<Socket> connect(const std::string& host, int port, const Deadline& deadline);

  bool is_open() const { return handle_ >= 0; }
  int handle() const { return handle_; }
  Outcome<void> send(std::string_view bytes, const Deadline& deadline);
  // Receives exactly `size` bytes. Fails if the peer closes the connection first.
  Outcome<std::string> receive(std::size_t size, const Deadline& deadline);
  // Receives between 1 and `max_bytes` bytes, as many as are available. The result is empty if the peer has
  // closed the connection.
  Outcome<std::string> receive_some(std::size_t max_bytes, const Deadline& deadline);

  // The numeric addresses of this end of the connection and of the peer.
  std::string own_address() const;
  std::string peer_address() const;

  // Optimizes for short requests and responses: sends without delay, and retransmits at constant intervals
  // on lossy networks. Call this on accepted connections. connect() does so for the connections that it
  // opens.
  void optimize_latency() const;

 private:
  int handle_ = -1;
};

enum class Listening { on_loopback, everywhere };
// Opens a non-blocking socket that accepts connections. Port 0 means any free port. Throws a RuntimeFailure
// if the port is not available.
Socket listen_at(Listening interface, int port);
int port_of(const Socket& listener);

// Whether `host` is "localhost" or a numeric loopback address (127.0.0.0/8 or ::1).
bool is_loopback(std::string_view host);

// Splits "host:port" or "[::1]:port". Error messages start with `setting_name`. Throws a UserError if the
// text has another form.
std::pair<std::string, int> parse_host_port(std::string_view text, std::string_view setting_name);

}  // namespace optimus
