// Implements store_server.h. One thread serves all connections with epoll and never blocks on any of them.
#include "store/store_server.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <map>
#include <thread>
#include <unordered_map>

#include "base/text.h"
#include "store/store_protocol.h"

namespace optimus {
namespace {

using namespace store_protocol;
using Clock = std::chrono::steady_clock;

constexpr auto kGreetingTimeout = std::chrono::seconds(2);
constexpr std::size_t kMaxUnauthenticated = 128;     // connections that have not sent the token yet
constexpr std::size_t kMaxStoredBytes = 1ULL << 30;  // total size of all keys and values
// Requests on a connection are not processed while it has more unsent response bytes than this.
constexpr std::size_t kMaxUnsentBytes = 1ULL << 20;
constexpr std::size_t kMaxWillBytes = 1 << 12;
// The number of connections to accept before existing connections are served again.
constexpr int kMaxAcceptsPerTurn = 64;

// Raises the limit on open files to the maximum, so that as many connections as possible can be opened.
void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

bool is_same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(i < b.size() ? b[i] : '\0');
  return difference == 0;
}

struct StoreServer::Impl {
  struct Connection {
    Socket socket;
    bool is_authenticated = false;
    std::string token;
    std::string in, out;
    std::string will_key, will_value;
    std::size_t num_sent = 0;
    bool waits_until_writable = false;  // epoll reports when the connection is writable again
  };

  explicit Impl(const StoreServerOptions& options)
      : token(options.token),
        listener(listen_at(options.interface, options.port)),
        epoll(::epoll_create1(EPOLL_CLOEXEC)),
        wake_event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!epoll.is_open() || !wake_event.is_open())
      throw RuntimeFailure("the store could not be started: too many open files");
    watch(listener.handle(), EPOLLIN);
    watch(wake_event.handle(), EPOLLIN);
  }

  void watch(int handle, std::uint32_t events, int epoll_operation = EPOLL_CTL_ADD) {
    epoll_event event{};
    event.events = events, event.data.fd = handle;
    ::epoll_ctl(epoll.handle(), epoll_operation, handle, &event);
  }

  void run();
  void accept_connections();
  void drop(int handle);
  void drop_expired_unauthenticated();
  void drop_oldest_unauthenticated() {
    if (!unauthenticated.empty()) drop(unauthenticated.begin()->second);
  }
  // These functions return false if the connection must be closed.
  bool read(Connection& connection);
  bool write(Connection& connection);
  bool handshake(Connection& connection);
  bool answer_all(Connection& connection);
  void handle_request(Connection& connection, char request_kind, std::string_view key,
                      std::string_view value);
  void answer_count(Connection& connection, const std::string& key);
  // Returns false if the store is full.
  bool store_value(const std::string& key, std::string_view value);
  static void put_answer(Connection& connection, char kind, std::string_view bytes);

  const std::string token;
  Socket listener, epoll, wake_event;
  std::map<int, Connection> connections;
  std::multimap<Clock::time_point, int> unauthenticated;  // keyed by the time at which they were accepted
  std::unordered_map<std::string, std::string> values;
  std::size_t stored_bytes = 0;
  std::thread thread;
};

void StoreServer::Impl::run() {
  epoll_event events[64];
  while (true) {
    const int ready = ::epoll_wait(epoll.handle(), events, 64, unauthenticated.empty() ? -1 : 100);
    for (int i = 0; i < ready; ++i) {
      const int handle = events[i].data.fd;
      if (handle == wake_event.handle()) return;
      if (handle == listener.handle()) {
        accept_connections();
        continue;
      }
      const auto it = connections.find(handle);
      if (it == connections.end()) continue;  // closed in the meantime
      Connection& connection = it->second;
      const bool is_usable = (events[i].events & EPOLLOUT) == 0 || write(connection);
      if (!is_usable || ((events[i].events & ~EPOLLOUT) != 0 && !read(connection))) drop(handle);
    }
    drop_expired_unauthenticated();
  }
}

void StoreServer::Impl::accept_connections() {
  for (int i = 0; i < kMaxAcceptsPerTurn; ++i) {
    Socket socket(::accept4(listener.handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open() && (errno == EMFILE || errno == ENFILE) && !unauthenticated.empty()) {
      drop_oldest_unauthenticated();
      continue;
    }
    if (!socket.is_open()) {
      // The process has no free file descriptors. New connections wait in the socket's backlog, and the pause
      // keeps this thread from spinning.
      if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    socket.optimize_latency();
    const int handle = socket.handle();
    if (unauthenticated.size() >= kMaxUnauthenticated) drop_oldest_unauthenticated();
    watch(handle, EPOLLIN | EPOLLRDHUP);
    connections[handle].socket = std::move(socket);
    unauthenticated.emplace(Clock::now(), handle);
  }
}

void StoreServer::Impl::drop(int handle) {
  std::erase_if(unauthenticated, [&](const auto& candidate) { return candidate.second == handle; });
  const auto it = connections.find(handle);
  if (it == connections.end()) return;
  const Connection& ended = it->second;
  if (!ended.will_key.empty() && !values.contains(ended.will_key))
    store_value(ended.will_key, ended.will_value);
  connections.erase(it);  // closes the socket, which removes it from epoll
}

void StoreServer::Impl::drop_expired_unauthenticated() {
  const auto oldest_allowed = Clock::now() - kGreetingTimeout;
  while (!unauthenticated.empty() && unauthenticated.begin()->first < oldest_allowed)
    drop_oldest_unauthenticated();
}

bool StoreServer::Impl::read(Connection& connection) {
  char block[1 << 16];
  const std::size_t read_limit = connection.is_authenticated ? sizeof block : kMaxGreetingBytes;
  const ssize_t size = ::recv(connection.socket.handle(), block, read_limit, 0);
  if (size == 0) return false;
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  connection.in.append(block, static_cast<std::size_t>(size));
  if (!connection.is_authenticated && !handshake(connection)) return false;
  return !connection.is_authenticated || (answer_all(connection) && write(connection));
}

// A client that does not know the token never receives a response.
bool StoreServer::Impl::handshake(Connection& connection) {
  const std::size_t end = connection.in.find('\n');
  const std::string_view line = std::string_view(connection.in).substr(0, end);
  if (line.size() > kMaxGreetingBytes ||
      line.substr(0, kGreeting.size()) != kGreeting.substr(0, std::min(line.size(), kGreeting.size())))
    return false;
  if (end == std::string::npos) return true;
  if (line.size() < kGreeting.size()) return false;
  const std::string client_token(line.substr(kGreeting.size()));
  if (!token.empty() && !is_same_secret(token, client_token)) return false;
  connection.is_authenticated = true, connection.token = client_token;
  connection.in.erase(0, end + 1);
  connection.out += kAccepted;
  std::erase_if(unauthenticated,
                [&](const auto& other) { return other.second == connection.socket.handle(); });
  return true;
}

bool StoreServer::Impl::answer_all(Connection& connection) {
  std::string_view unparsed = connection.in;
  while (unparsed.size() >= kRequestHeader && connection.out.size() - connection.num_sent < kMaxUnsentBytes) {
    const std::size_t key_size = size_at(unparsed, 1), value_size = size_at(unparsed, 5);
    if (key_size > kMaxKeyBytes || value_size > kMaxValueBytes) return false;
    if (unparsed.size() < kRequestHeader + key_size + value_size) break;
    handle_request(connection, unparsed[0], unparsed.substr(kRequestHeader, key_size),
                   unparsed.substr(kRequestHeader + key_size, value_size));
    unparsed.remove_prefix(kRequestHeader + key_size + value_size);
  }
  connection.in.erase(0, connection.in.size() - unparsed.size());
  return true;
}

void StoreServer::Impl::put_answer(Connection& connection, char kind, std::string_view bytes) {
  connection.out += kind;
  put_size(connection.out, bytes.size());
  connection.out += bytes;
}

void StoreServer::Impl::handle_request(Connection& connection, char request_kind, std::string_view key,
                                       std::string_view value) {
  const std::string whole_key = connection.token + '\0' + std::string(key);
  const auto it = values.find(whole_key);
  if (request_kind == kFind) {
    if (it == values.end()) return put_answer(connection, kNothing, "");
    return put_answer(connection, kValue, it->second);
  }
  if (request_kind == kCount) return answer_count(connection, whole_key);
  if (request_kind == kWill) {
    if (value.size() > kMaxWillBytes) return put_answer(connection, kRejected, "the last-will is too large");
    connection.will_key = key.empty() ? "" : whole_key, connection.will_value = value;
    return put_answer(connection, kNothing, "");
  }
  if (request_kind != kSet) return put_answer(connection, kRejected, "unknown operation");
  if (!store_value(whole_key, value)) return put_answer(connection, kRejected, "the store is full");
  put_answer(connection, kNothing, "");
}

bool StoreServer::Impl::store_value(const std::string& key, std::string_view value) {
  const auto it = values.find(key);
  const std::size_t size_before = it == values.end() ? 0 : key.size() + it->second.size();
  if (stored_bytes - size_before + key.size() + value.size() > kMaxStoredBytes) return false;
  stored_bytes += key.size() + value.size() - size_before;
  values[key] = std::string(value);
  return true;
}

void StoreServer::Impl::answer_count(Connection& connection, const std::string& key) {
  const auto it = values.find(key);
  std::int64_t count = 0;
  if (it != values.end() && !it->second.empty()) {
    const char* const begin = it->second.data();
    const auto [end, error] = std::from_chars(begin, begin + it->second.size(), count);
    if (error != std::errc() || end != begin + it->second.size() || count == INT64_MAX)
      return put_answer(connection, kRejected,
                        "the value of the key is not a number that can be incremented");
  }
  const std::string new_value = std::to_string(count + 1);
  if (!store_value(key, new_value)) return put_answer(connection, kRejected, "the store is full");
  put_answer(connection, kValue, new_value);
}

bool StoreServer::Impl::write(Connection& connection) {
  const int handle = connection.socket.handle();
  while (true) {
    while (connection.num_sent < connection.out.size()) {
      const ssize_t size = ::send(handle, connection.out.data() + connection.num_sent,
                                  connection.out.size() - connection.num_sent, MSG_NOSIGNAL);
      if (size < 0 && errno == EINTR) continue;
      if (size < 0 && errno != EAGAIN) return false;
      if (size < 0) {
        // No further requests are read from this connection until it is writable again.
        if (!connection.waits_until_writable) watch(handle, EPOLLOUT, EPOLL_CTL_MOD);
        connection.waits_until_writable = true;
        return true;
      }
      connection.num_sent += static_cast<std::size_t>(size);
    }
    connection.out.clear(), connection.num_sent = 0;
    if (connection.waits_until_writable) watch(handle, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_MOD);
    connection.waits_until_writable = false;
    // Handles requests that waited because too many response bytes were unsent.
    if (!answer_all(connection)) return false;
    if (connection.out.empty()) return true;
  }
}

StoreServer::StoreServer(StoreServerOptions options) {
  ensure(!options.token.empty() || options.interface == Listening::on_loopback,
         "a store that is open to the network needs a token");
  raise_file_limit();
  impl_ = std::make_unique<Impl>(options);
  impl_->thread = std::thread([parts = impl_.get()] { parts->run(); });
}

StoreServer::~StoreServer() {
  const std::uint64_t one = 1;
  (void)!::write(impl_->wake_event.handle(), &one, sizeof one);
  impl_->thread.join();
}

int StoreServer::port() const { return port_of(impl_->listener); }

}  // namespace optimus
