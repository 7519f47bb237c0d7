// A KeyStore in etcd, accessed through its JSON gateway (v3). The keys of a run are stored under
// optimus/HASH, where HASH is a hash of the token. Access control is left to etcd.
#include <fmt/format.h>

#include <mutex>

#include "base/json.h"
#include "base/random.h"
#include "base/text.h"
#include "store/http.h"
#include "store/key_store.h"

namespace optimus {
namespace {

constexpr Seconds kEtcdTimeout{5};

std::string run_prefix(const std::string& token) {
  return fmt::format("optimus/{:016x}/", RandomKey(0).derive(token).value);
}

// Returns the first key after all keys with the prefix.
std::string prefix_end(std::string prefix) {
  prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

class EtcdStore final : public KeyStore {
 public:
  explicit EtcdStore(const StoreAddress& address) : address_(address), prefix_(run_prefix(address.token)) {}

  Outcome<void> set(const std::string& key, const std::string& value) override {
    const auto answer = post("put", {{"key", encoded_key(key)}, {"value", to_base64(value)}});
    if (!answer) return tl::unexpected(answer.error());
    return {};
  }

  Outcome<std::optional<std::string>> find(const std::string& key) override {
    const auto answer = post("range", {{"key", encoded_key(key)}});
    if (!answer) return tl::unexpected(answer.error());
    return catch_user_errors([&]() -> Outcome<std::optional<std::string>> {
      const auto pairs = JsonView(*answer, "etcd's response").find("kvs");
      if (!pairs || pairs->elements().empty()) return std::nullopt;
      const auto value = from_base64(pairs->elements()[0].text_or("value", ""));
      if (!value) return failure("etcd: {}", value.error().why);
      return std::optional(*value);
    });
  }

  // Uses the version that etcd keeps for each key, which counts the writes to it. The response to a write
  // contains the version before the write.
  Outcome<std::int64_t> increment(const std::string& key) override {
    const auto answer = post("put", {{"key", encoded_key(key)}, {"value", ""}, {"prev_kv", true}});
    if (!answer) return tl::unexpected(answer.error());
    return catch_user_errors([&]() -> Outcome<std::int64_t> {
      const auto previous_pair = JsonView(*answer, "etcd's response").find("prev_kv");
      if (!previous_pair) return 1;
      const std::string version = previous_pair->at("version").text();
      return static_cast<std::int64_t>(std::strtoll(version.c_str(), nullptr, 10)) + 1;
    });
  }

  Outcome<void> set_last_will(const std::string&, const std::string&) override { return {}; }

  Outcome<void> clear() override {
    const auto answer =
        post("deleterange", {{"key", to_base64(prefix_)}, {"range_end", to_base64(prefix_end(prefix_))}});
    if (!answer) return tl::unexpected(answer.error());
    return {};
  }

  std::string own_address() const override { return own_address_; }
  std::string store_address() const override {
    return "";
  }  // the address of etcd is not the address of a rank

  Outcome<void> connect(const Deadline& deadline) {
    Outcome<Socket> socket = Socket::connect(address_.host, address_.port, deadline);
    if (!socket) return tl::unexpected(socket.error());
    socket_ = std::move(*socket);
    if (own_address_.empty()) own_address_ = socket_.own_address();
    return {};
  }

 private:
  std::string encoded_key(const std::string& key) const { return to_base64(prefix_ + key); }

  template <typename Function>
  static auto catch_user_errors(Function&& function) -> decltype(function()) {
    try {
      return function();
    } catch (const UserError& error) {
      return failure("{}", error.what());
    }
  }

  Outcome<Json> post(const std::string& method, const Json& body) {
    const std::lock_guard lock(mutex_);
    const Deadline deadline = Deadline::after(kEtcdTimeout, "etcd");
    Outcome<HttpResponse> answer = exchange(method, body, deadline);
    if (!answer) {
      socket_ = Socket();
      return failure("etcd at {}:{}: {}", address_.host, address_.port, answer.error().why);
    }
    if (answer->status != 200)
      return failure("etcd at {}:{}: {} failed with status {}: {}", address_.host, address_.port, method,
                     answer->status, in_quotes(answer->body, 100));
    return catch_user_errors([&]() -> Outcome<Json> { return parse_json(answer->body, "etcd's response"); });
  }

  Outcome<HttpResponse> exchange(const std::string& method, const Json& body, const Deadline& deadline) {
    if (!socket_.is_open())
      if (const auto connected = connect(deadline); !connected) return tl::unexpected(connected.error());
    const std::string request =
        http_post(fmt::format("{}:{}", address_.host, address_.port), "/v3/kv/" + method, body.dump());
    if (const auto sent = socket_.send(request, deadline); !sent) return tl::unexpected(sent.error());
    return read_http_response(socket_, deadline);
  }

  const StoreAddress address_;
  const std::string prefix_;
  std::string own_address_;
  std::mutex mutex_;
  Socket socket_;
};

}  // namespace

Outcome<std::unique_ptr<KeyStore>> open_etcd_store(const StoreAddress& address, const Deadline& deadline) {
  auto store = std::make_unique<EtcdStore>(address);
  const auto connected = store->connect(
      Deadline::after(Seconds(std::min(kEtcdTimeout.value, deadline.remaining().value)), "etcd"));
  if (!connected)
    return failure("etcd at {}:{} cannot be reached: {}", address.host, address.port, connected.error().why);
  if (const auto answers = store->find("hello"); !answers) return tl::unexpected(answers.error());
  return store;
}

}  // namespace optimus
