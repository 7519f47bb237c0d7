// TCP with deadlines: connections that never wait longer than they were told, and ports to listen at. Not what is said over them
// (tcp_store.cpp, etcd_store.cpp, store_server.cpp).
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"

namespace optimus {

// A connection; closed by the destructor. One thread at a time.
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

  // One attempt. Looking up a name may take as long as the system's resolver does.
  static Outcome<Socket> connect(const std::string& host, int port, const Deadline& deadline);

  bool is_open() const { return handle_ >= 0; }
  int handle() const { return handle_; }
  Outcome<void> send(std::string_view bytes, const Deadline& deadline);
  // Exactly so many bytes. Fails when the other end has closed before.
  Outcome<std::string> receive(std::size_t size, const Deadline& deadline);
  // What has come, at least a byte and at most so many; empty when the other end has closed.
  Outcome<std::string> receive_some(std::size_t most, const Deadline& deadline);

  // Addresses in digits: of this end, and of the other.
  std::string own_address() const;
  std::string peer_address() const;

  // For short questions and answers: sent at once, and on a network that loses some, sent again and again as soon as the first time. Of
  // connections that others have begun; those of connect() are.
  void be_prompt() const;

 private:
  int handle_ = -1;
};

enum class Listening { on_loopback, everywhere };
// A socket that accepts connections, not blocking; port 0: any that is free. Throws UserError when the port cannot be had.
Socket listen_at(Listening where, int port);
int port_of(const Socket& listener);

// 127.0.0.0/8 or ::1 in digits, or "localhost".
bool is_loopback(std::string_view host);

// "host:port" or "[::1]:port" into its parts. `what` names the value in errors. Throws UserError.
std::pair<std::string, int> parse_host_port(std::string_view text, std::string_view what);

}  // namespace optimus
