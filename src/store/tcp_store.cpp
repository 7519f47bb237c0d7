// Implements the client of a StoreServer (store_protocol.h).
#include <algorithm>
#include <charconv>
#include <iterator>
#include <mutex>
#include <span>
#include <string_view>

#include "store/key_store.h"
#include "store/socket.h"
#include "store/store_protocol.h"

namespace optimus {
namespace {

using namespace store_protocol;

constexpr Seconds kAnswerTimeout{5};
// The timeout after a call to which the store did not respond. It is shorter because a process makes several
// calls in a row when it ends.
constexpr Seconds kRetryTimeout{1};

// There are two deadlines because the kernel accepts connections even while the store's process is busy,
// whereas only the process can respond.
Outcome<Socket> handshake(const StoreAddress& address, const Deadline& connect_deadline,
                          const Deadline& deadline) {
  Outcome<Socket> socket = Socket::connect(address.host, address.port, connect_deadline);
  if (!socket) return socket;
  const std::string greeting = std::string(kGreeting) + address.token + "\n";
  if (const auto sent = socket->send(greeting, deadline); !sent) return tl::unexpected(sent.error());
  const Outcome<std::string> answer = socket->receive(kAccepted.size(), deadline);
  if (!answer) return failure("{}; check the token", answer.error().why);
  if (*answer != kAccepted) return failure("the process on that port is not an Optimus store");
  return socket;
}

Deadline attempt_deadline(const Deadline& deadline) {
  return Deadline::after(Seconds(std::min(kAnswerTimeout.value, deadline.remaining().value)),
                         deadline.name());
}

// Receives the responses of one round trip in large blocks and returns them one by one.
struct AnswerReader {
  Socket& socket;
  const Deadline& deadline;
  std::string bytes{};
  std::size_t num_parsed = 0;

  Outcome<std::string> take(std::size_t size) {
    constexpr std::size_t kBlockBytes = std::size_t{1} << 16;
    while (bytes.size() - num_parsed < size) {
      const Outcome<std::string> received = socket.receive_some(kBlockBytes, deadline);
      if (!received) return received;
      if (received->empty()) return failure("the peer closed the connection");
      bytes += *received;
    }
    num_parsed += size;
    return bytes.substr(num_parsed - size, size);
  }
};

class TcpStore final : public KeyStore {
 public:
  TcpStore(StoreAddress address, Socket socket)
      : address_(std::move(address)),
        own_address_(socket.own_address()),
        store_address_(socket.peer_address()),
        socket_(std::move(socket)) {}

  Outcome<void> set(const std::string& key, const std::string& value) override {
    const auto answer = request(kSet, key, value);
    if (!answer) return tl::unexpected(answer.error());
    return {};
  }
  Outcome<std::optional<std::string>> find(const std::string& key) override {
    return request(kFind, key, "");
  }
  Outcome<std::vector<std::optional<std::string>>> query(const Query& query) override {
    std::vector<Request> requests;
    for (const auto& [key, value] : query.sets) requests.push_back({kSet, key, value});
    for (const std::string& key : query.gets) requests.push_back({kFind, key, ""});
    auto answers = request(requests);
    if (answers) answers->erase(answers->begin(), answers->begin() + std::ssize(query.sets));
    return answers;
  }
  Outcome<std::int64_t> increment(const std::string& key) override {
    const auto answer = request(kCount, key, "");
    if (!answer) return tl::unexpected(answer.error());
    const std::string text = answer->value_or("");
    std::int64_t count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (error != std::errc() || text.empty()) return failure("the store: expected a number as the response");
    return count;
  }
  // Uses a separate connection, because the main connection is closed after a timeout and closing it must not
  // trigger the last-will.
  Outcome<void> set_last_will(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    const Deadline deadline = Deadline::after(timeout(), "the store");
    if (!will_socket_.is_open()) {
      if (key.empty()) return {};
      Outcome<Socket> connected = handshake(address_, deadline, deadline);
      if (!connected) return failure("the store: {}", connected.error().why);
      will_socket_ = std::move(*connected);
    }
    const auto answer = exchange(will_socket_, std::vector<Request>{{kWill, key, value}}, deadline);
    if (!answer) return failure("the store: {}", answer.error().why);
    return {};
  }
  Outcome<void> clear() override { return {}; }
  std::string own_address() const override { return own_address_; }
  std::string store_address() const override { return store_address_; }

 private:
  struct Request {
    char kind;
    std::string_view key, value;
  };
  using Answers = std::vector<std::optional<std::string>>;
  // The store stops reading from a client that does not read its responses. This number of short requests per
  // round trip fits into the network buffers.
  static constexpr std::size_t kMaxRequestsPerRoundTrip = 256;

  Seconds timeout() const { return timed_out_before_ ? kRetryTimeout : kAnswerTimeout; }

  Outcome<std::optional<std::string>> request(char request_kind, const std::string& key,
                                              const std::string& value) {
    auto answers = request({{request_kind, key, value}});
    if (!answers) return tl::unexpected(answers.error());
    return std::move(answers->front());
  }

  // A connection that has failed is not reused, because a late response would be mistaken for the response to
  // another request.
  Outcome<Answers> request(const std::vector<Request>& requests) {
    for (const auto& [kind, key, value] : requests)
      if (key.size() > kMaxKeyBytes || value.size() > kMaxValueBytes)
        return failure("the store: the value of {} bytes is too large for key {}", value.size(),
                       key.substr(0, 60));
    const std::lock_guard lock(mutex_);
    const Deadline deadline = Deadline::after(timeout(), "the store");
    timed_out_before_ = true;
    if (!socket_.is_open()) {
      Outcome<Socket> reconnected = handshake(address_, deadline, deadline);
      if (!reconnected) return failure("the store: {}", reconnected.error().why);
      socket_ = std::move(*reconnected);
    }
    Answers answers;
    for (std::size_t first = 0; first < requests.size(); first += kMaxRequestsPerRoundTrip) {
      auto received = exchange(socket_,
                               std::span(requests).subspan(first).first(
                                   std::min(kMaxRequestsPerRoundTrip, requests.size() - first)),
                               deadline);
      if (!received) {
        socket_ = Socket();
        return failure("the store: {}", received.error().why);
      }
      std::move(received->begin(), received->end(), std::back_inserter(answers));
    }
    timed_out_before_ = false;
    return answers;
  }

  static Outcome<Answers> exchange(Socket& socket, std::span<const Request> requests,
                                   const Deadline& deadline) {
    std::string bytes;
    for (const auto& [kind, key, value] : requests) {
      bytes += kind;
      put_size(bytes, key.size());
      put_size(bytes, value.size());
      bytes.append(key).append(value);
    }
    if (const auto sent = socket.send(bytes, deadline); !sent) return tl::unexpected(sent.error());
    Answers answers;
    AnswerReader reader{socket, deadline};
    for (const Request& request : requests) {
      auto answer = receive_answer(reader, request.key);
      if (!answer) return tl::unexpected(answer.error());
      answers.push_back(std::move(*answer));
    }
    return answers;
  }

  static Outcome<std::optional<std::string>> receive_answer(AnswerReader& reader, std::string_view key) {
    const auto header = reader.take(kAnswerHeader);
    if (!header) return tl::unexpected(header.error());
    const std::size_t size = size_at(*header, 1);
    if (size > kMaxValueBytes) return failure("the response is too large: {} bytes", size);
    auto bytes = reader.take(size);
    if (!bytes) return tl::unexpected(bytes.error());
    if ((*header)[0] == kNothing) return std::optional<std::string>();
    if ((*header)[0] == kValue) return std::optional<std::string>(std::move(*bytes));
    return failure("the store rejected {}: {}", key, *bytes);
  }

  const StoreAddress address_;
  const std::string own_address_, store_address_;
  std::mutex mutex_;
  Socket socket_, will_socket_;
  bool timed_out_before_ = false;
};

}  // namespace

Outcome<std::unique_ptr<KeyStore>> open_tcp_store(const StoreAddress& address, const Deadline& deadline) {
  return open_tcp_store(address, attempt_deadline(deadline), attempt_deadline(deadline));
}

Outcome<std::unique_ptr<KeyStore>> open_tcp_store(const StoreAddress& address,
                                                  const Deadline& connect_deadline,
                                                  const Deadline& answer_deadline) {
  Outcome<Socket> socket = handshake(address, connect_deadline, answer_deadline);
  if (!socket)
    return failure("the store at {}:{} cannot be reached: {}", address.host, address.port,
                   socket.error().why);
  return std::make_unique<TcpStore>(address, std::move(*socket));
}

}  // namespace optimus
