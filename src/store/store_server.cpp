// Implements store_server.h. One thread serves all connections with epoll and never blocks on a single one.
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

constexpr auto kGreetingPatience = std::chrono::seconds(2);
constexpr std::size_t kMostStrangers = 128;    // unauthenticated connections
constexpr std::size_t kMostKept = 1ULL << 30;  // bytes of keys and values
// unsent bytes of answers, above which the requests of a connection wait
constexpr std::size_t kMostUnread = 1ULL << 20;
constexpr std::size_t kLongestWill = 1 << 12;
constexpr int kMostAtOnce = 64;  // connections accepted before the existing ones are served

// Raises the limit of open files to the maximum, to allow as many connections as possible.
void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

bool is_same_secret(std::string_view one, std::string_view other) {
  unsigned difference = one.size() == other.size() ? 0 : 1;
  for (std::size_t i = 0; i < one.size(); ++i)
    difference |=
        static_cast<unsigned char>(one[i]) ^ static_cast<unsigned char>(i < other.size() ? other[i] : '\0');
  return difference == 0;
}

struct StoreServer::Parts {
  struct Connection {
    Socket socket;
    bool is_known = false;
    std::string token;
    std::string in, out;
    std::string will_key, will_value;
    std::size_t num_sent = 0;
    bool waits_for_room = false;  // epoll reports when the connection is writable again
  };

  explicit Parts(const StoreServerOptions& options)
      : token(options.token),
        listener(listen_at(options.where, options.port)),
        epoll(::epoll_create1(EPOLL_CLOEXEC)),
        wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!epoll.is_open() || !wake.is_open())
      throw UserError("the store could not be started: too many open files");
    watch(listener.handle(), EPOLLIN);
    watch(wake.handle(), EPOLLIN);
  }

  void watch(int handle, std::uint32_t events, int how = EPOLL_CTL_ADD) {
    epoll_event event{};
    event.events = events, event.data.fd = handle;
    ::epoll_ctl(epoll.handle(), how, handle, &event);
  }

  void run();
  void accept_some();
  void drop(int handle);
  void drop_late_strangers();
  void drop_oldest_stranger() {
    if (!strangers.empty()) drop(strangers.begin()->second);
  }
  // These return false if the connection must be closed.
  bool read(Connection& connection);
  bool write(Connection& connection);
  bool greet(Connection& connection);
  bool answer_all(Connection& connection);
  void answer(Connection& connection, char what, std::string_view key, std::string_view value);
  void answer_count(Connection& connection, const std::string& key);
  // Returns false if the store is full.
  bool keep(const std::string& key, std::string_view value);
  static void put_answer(Connection& connection, char kind, std::string_view bytes);

  const std::string token;
  Socket listener, epoll, wake;
  std::map<int, Connection> connections;
  std::multimap<Clock::time_point, int> strangers;  // by the time of acceptance
  std::unordered_map<std::string, std::string> kept;
  std::size_t num_kept = 0;
  std::thread thread;
};

void StoreServer::Parts::run() {
  epoll_event events[64];
  while (true) {
    const int ready = ::epoll_wait(epoll.handle(), events, 64, strangers.empty() ? -1 : 100);
    for (int i = 0; i < ready; ++i) {
      const int handle = events[i].data.fd;
      if (handle == wake.handle()) return;
      if (handle == listener.handle()) {
        accept_some();
        continue;
      }
      const auto found = connections.find(handle);
      if (found == connections.end()) continue;  // closed in the meantime
      Connection& connection = found->second;
      const bool is_well = (events[i].events & EPOLLOUT) == 0 || write(connection);
      if (!is_well || ((events[i].events & ~EPOLLOUT) != 0 && !read(connection))) drop(handle);
    }
    drop_late_strangers();
  }
}

void StoreServer::Parts::accept_some() {
  for (int i = 0; i < kMostAtOnce; ++i) {
    Socket socket(::accept4(listener.handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open() && (errno == EMFILE || errno == ENFILE) && !strangers.empty()) {
      drop_oldest_stranger();
      continue;
    }
    if (!socket.is_open()) {
      // The process has no free file descriptors: new connections wait in the queue, and this thread must not
      // spin.
      if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    socket.be_prompt();
    const int handle = socket.handle();
    if (strangers.size() >= kMostStrangers) drop_oldest_stranger();
    watch(handle, EPOLLIN | EPOLLRDHUP);
    connections[handle].socket = std::move(socket);
    strangers.emplace(Clock::now(), handle);
  }
}

void StoreServer::Parts::drop(int handle) {
  std::erase_if(strangers, [&](const auto& stranger) { return stranger.second == handle; });
  const auto found = connections.find(handle);
  if (found == connections.end()) return;
  const Connection& ended = found->second;
  if (!ended.will_key.empty() && !kept.contains(ended.will_key)) keep(ended.will_key, ended.will_value);
  connections.erase(found);  // closes the socket, which removes it from epoll
}

void StoreServer::Parts::drop_late_strangers() {
  const auto latest = Clock::now() - kGreetingPatience;
  while (!strangers.empty() && strangers.begin()->first < latest) drop_oldest_stranger();
}

bool StoreServer::Parts::read(Connection& connection) {
  char block[1 << 16];
  const std::size_t most = connection.is_known ? sizeof block : kLongestGreeting;
  const ssize_t size = ::recv(connection.socket.handle(), block, most, 0);
  if (size == 0) return false;
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  connection.in.append(block, static_cast<std::size_t>(size));
  if (!connection.is_known && !greet(connection)) return false;
  return !connection.is_known || (answer_all(connection) && write(connection));
}

// A client that does not know the token gets no answer, whatever it sends.
bool StoreServer::Parts::greet(Connection& connection) {
  const std::size_t end = connection.in.find('\n');
  const std::string_view line = std::string_view(connection.in).substr(0, end);
  if (line.size() > kLongestGreeting ||
      line.substr(0, kGreeting.size()) != kGreeting.substr(0, std::min(line.size(), kGreeting.size())))
    return false;
  if (end == std::string::npos) return true;
  if (line.size() < kGreeting.size()) return false;
  const std::string said(line.substr(kGreeting.size()));
  if (!token.empty() && !is_same_secret(token, said)) return false;
  connection.is_known = true, connection.token = said;
  connection.in.erase(0, end + 1);
  connection.out += kWelcome;
  std::erase_if(strangers, [&](const auto& other) { return other.second == connection.socket.handle(); });
  return true;
}

bool StoreServer::Parts::answer_all(Connection& connection) {
  std::string_view left = connection.in;
  while (left.size() >= kRequestHeader && connection.out.size() - connection.num_sent < kMostUnread) {
    const std::size_t key_size = size_at(left, 1), value_size = size_at(left, 5);
    if (key_size > kLongestKey || value_size > kLongestValue) return false;
    if (left.size() < kRequestHeader + key_size + value_size) break;
    answer(connection, left[0], left.substr(kRequestHeader, key_size),
           left.substr(kRequestHeader + key_size, value_size));
    left.remove_prefix(kRequestHeader + key_size + value_size);
  }
  connection.in.erase(0, connection.in.size() - left.size());
  return true;
}

void StoreServer::Parts::put_answer(Connection& connection, char kind, std::string_view bytes) {
  connection.out += kind;
  put_size(connection.out, bytes.size());
  connection.out += bytes;
}

void StoreServer::Parts::answer(Connection& connection, char what, std::string_view key,
                                std::string_view value) {
  const std::string whole_key = connection.token + '\0' + std::string(key);
  const auto found = kept.find(whole_key);
  if (what == kFind) {
    if (found == kept.end()) return put_answer(connection, kNothing, "");
    return put_answer(connection, kValue, found->second);
  }
  if (what == kCount) return answer_count(connection, whole_key);
  if (what == kWill) {
    if (value.size() > kLongestWill) return put_answer(connection, kRefused, "the will is too large");
    connection.will_key = key.empty() ? "" : whole_key, connection.will_value = value;
    return put_answer(connection, kNothing, "");
  }
  if (what != kSet) return put_answer(connection, kRefused, "unknown operation");
  if (!keep(whole_key, value)) return put_answer(connection, kRefused, "the store is full");
  put_answer(connection, kNothing, "");
}

bool StoreServer::Parts::keep(const std::string& key, std::string_view value) {
  const auto found = kept.find(key);
  const std::size_t before = found == kept.end() ? 0 : key.size() + found->second.size();
  if (num_kept - before + key.size() + value.size() > kMostKept) return false;
  num_kept += key.size() + value.size() - before;
  kept[key] = std::string(value);
  return true;
}

void StoreServer::Parts::answer_count(Connection& connection, const std::string& key) {
  const auto found = kept.find(key);
  std::int64_t number = 0;
  if (found != kept.end() && !found->second.empty()) {
    const char* const begin = found->second.data();
    const auto [end, error] = std::from_chars(begin, begin + found->second.size(), number);
    if (error != std::errc() || end != begin + found->second.size() || number == INT64_MAX)
      return put_answer(connection, kRefused, "the value of the key is not a number that can be incremented");
  }
  const std::string next = std::to_string(number + 1);
  if (!keep(key, next)) return put_answer(connection, kRefused, "the store is full");
  put_answer(connection, kValue, next);
}

bool StoreServer::Parts::write(Connection& connection) {
  const int handle = connection.socket.handle();
  while (true) {
    while (connection.num_sent < connection.out.size()) {
      const ssize_t size = ::send(handle, connection.out.data() + connection.num_sent,
                                  connection.out.size() - connection.num_sent, MSG_NOSIGNAL);
      if (size < 0 && errno == EINTR) continue;
      if (size < 0 && errno != EAGAIN) return false;
      if (size < 0) {
        // No further requests are read from this connection until it is writable again.
        if (!connection.waits_for_room) watch(handle, EPOLLOUT, EPOLL_CTL_MOD);
        connection.waits_for_room = true;
        return true;
      }
      connection.num_sent += static_cast<std::size_t>(size);
    }
    connection.out.clear(), connection.num_sent = 0;
    if (connection.waits_for_room) watch(handle, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_MOD);
    connection.waits_for_room = false;
    // Handles requests that were waiting for unsent answers.
    if (!answer_all(connection)) return false;
    if (connection.out.empty()) return true;
  }
}

StoreServer::StoreServer(StoreServerOptions options) {
  ensure(!options.token.empty() || options.where == Listening::on_loopback,
         "a store that is open to the network needs a token");
  raise_file_limit();
  parts_ = std::make_unique<Parts>(options);
  parts_->thread = std::thread([parts = parts_.get()] { parts->run(); });
}

StoreServer::~StoreServer() {
  const std::uint64_t one = 1;
  (void)!::write(parts_->wake.handle(), &one, sizeof one);
  parts_->thread.join();
}

int StoreServer::port() const { return port_of(parts_->listener); }

}  // namespace optimus
