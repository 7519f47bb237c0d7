// See socket.h.
#include "store/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "base/text.h"

namespace optimus {
namespace {

constexpr int kBacklog = 1024;

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Outcome<Addresses> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC, hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) return failure("unknown host {}: {}", in_quotes(host), ::gai_strerror(error));
  return Addresses(list);
}

// Waits until the socket is ready for `events`, or fails at the deadline.
Outcome<void> wait_for(int handle, short events, const Deadline& deadline) {
  while (true) {
    pollfd poll_entry{handle, events, 0};
    const int milliseconds =
        static_cast<int>(std::min(1e6, std::max(1.0, 1000 * deadline.remaining().value)));
    const int ready = ::poll(&poll_entry, 1, milliseconds);
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return failure("{}", std::strerror(errno));
    if (deadline.has_passed()) return failure("no response in time ({})", deadline.name());
  }
}

Outcome<Socket> connect_to(const addrinfo& address, const Deadline& deadline) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return failure("{}", std::strerror(errno));
  if (::connect(socket.handle(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return failure("{}", std::strerror(errno));
    if (const auto ready = wait_for(socket.handle(), POLLOUT, deadline); !ready)
      return tl::unexpected(ready.error());
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(socket.handle(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return failure("{}", std::strerror(error));
  }
  socket.optimize_latency();
  return socket;
}

std::string numeric_address(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST] = {};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return "";
  const std::string_view mapped = "::ffff:";  // prefix of IPv4 addresses on a dual-stack socket
  return starts_with(host, mapped) ? std::string(host).substr(mapped.size()) : std::string(host);
}

// Returns a closed Socket if the system does not support this address family or the port is in use.
Socket open_listener(int family, Listening interface, int port) {
  Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return socket;
  const int yes = 1, no = 0;
  ::setsockopt(socket.handle(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_storage address{};
  socklen_t size = 0;
  if (family == AF_INET6) {
    ::setsockopt(socket.handle(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    auto& ipv6 = reinterpret_cast<sockaddr_in6&>(address);
    ipv6.sin6_family = AF_INET6, ipv6.sin6_addr = in6addr_any,
    ipv6.sin6_port = htons(static_cast<std::uint16_t>(port));
    size = sizeof ipv6;
  } else {
    auto& ipv4 = reinterpret_cast<sockaddr_in&>(address);
    ipv4.sin_family = AF_INET, ipv4.sin_port = htons(static_cast<std::uint16_t>(port));
    ipv4.sin_addr.s_addr = htonl(interface == Listening::on_loopback ? INADDR_LOOPBACK : INADDR_ANY);
    size = sizeof ipv4;
  }
  if (::bind(socket.handle(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(socket.handle(), kBacklog) != 0)
    return {};
  return socket;
}

}  // namespace

Socket::~Socket() {
  if (handle_ >= 0) ::close(handle_);
}

Outcome<Socket> Socket::connect(const std::string& host, int port, const Deadline& deadline) {
  const Outcome<Addresses> addresses = resolve(host, port);
  if (!addresses) return tl::unexpected(addresses.error());
  Outcome<Socket> result = failure("host {} has no address", in_quotes(host));
  for (const addrinfo* address = addresses->get(); address != nullptr; address = address->ai_next) {
    result = connect_to(*address, deadline);
    if (result) break;
  }
  return result;
}

void Socket::optimize_latency() const {
  const int yes = 1;
  ::setsockopt(handle_, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  for (const int option : {TCP_NODELAY, TCP_THIN_LINEAR_TIMEOUTS})
    ::setsockopt(handle_, IPPROTO_TCP, option, &yes, sizeof yes);
}

Outcome<void> Socket::send(std::string_view bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t size = ::send(handle_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (size > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(size));
    } else if (errno == EAGAIN || errno == EINTR) {
      if (const auto ready = wait_for(handle_, POLLOUT, deadline); !ready) return ready;
    } else {
      return failure("{}", std::strerror(errno));
    }
  }
  return {};
}

Outcome<std::string> Socket::receive_some(std::size_t max_bytes, const Deadline& deadline) {
  std::string bytes(std::min<std::size_t>(max_bytes, 1 << 16), '\0');
  while (true) {
    const ssize_t size = ::recv(handle_, bytes.data(), bytes.size(), 0);
    if (size >= 0) {
      bytes.resize(static_cast<std::size_t>(size));
      return bytes;
    }
    if (errno != EAGAIN && errno != EINTR) return failure("{}", std::strerror(errno));
    if (const auto ready = wait_for(handle_, POLLIN, deadline); !ready) return tl::unexpected(ready.error());
  }
}

Outcome<std::string> Socket::receive(std::size_t size, const Deadline& deadline) {
  std::string bytes;
  while (bytes.size() < size) {
    const Outcome<std::string> received = receive_some(size - bytes.size(), deadline);
    if (!received) return received;
    if (received->empty()) return failure("the peer closed the connection");
    bytes += *received;
  }
  return bytes;
}

std::string Socket::own_address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  return ::getsockname(handle_, reinterpret_cast<sockaddr*>(&address), &size) == 0
             ? numeric_address(address, size)
             : "";
}

std::string Socket::peer_address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  return ::getpeername(handle_, reinterpret_cast<sockaddr*>(&address), &size) == 0
             ? numeric_address(address, size)
             : "";
}

Socket listen_at(Listening interface, int port) {
  Socket socket;
  if (interface == Listening::everywhere) socket = open_listener(AF_INET6, interface, port);
  if (!socket.is_open()) socket = open_listener(AF_INET, interface, port);
  if (!socket.is_open())
    throw RuntimeFailure("port {} on {} is not available: {}; set MASTER_PORT to another port", port,
                         interface == Listening::on_loopback ? "the loopback interface" : "this machine",
                         std::strerror(errno));
  return socket;
}

int port_of(const Socket& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(listener.handle(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || starts_with(host, "127.");
}

std::pair<std::string, int> parse_host_port(std::string_view text, std::string_view setting_name) {
  const std::size_t colon = text.rfind(':');
  int port = 0;
  if (colon != std::string_view::npos)
    if (const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
        error != std::errc() || end != text.data() + text.size())
      port = 0;
  std::string_view host = text.substr(0, colon == std::string_view::npos ? 0 : colon);
  if (starts_with(host, "[") && ends_with(host, "]")) host = host.substr(1, host.size() - 2);
  if (host.empty() || host.size() > 255 || port < 1 || port > 65535)
    throw UserError("{}: expected HOST:PORT, such as node1:29400, got {}", setting_name, in_quotes(text));
  return {std::string(host), port};
}

}  // namespace optimus
