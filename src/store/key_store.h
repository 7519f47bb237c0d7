// KeyStore: the key-value store through which the ranks of a run find each other. It is hosted by a process
// that all ranks can reach: a StoreServer (store_server.h), or etcd if the user specifies one. It contains
// only small values, such as addresses, settings and the exit reasons of ranks, but never tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"

namespace optimus {

// A connection to a store. Thread-safe. A call fails instead of blocking for more than a few seconds.
class KeyStore {
 public:
  virtual ~KeyStore() = default;
  virtual Outcome<void> set(const std::string& key, const std::string& value) = 0;
  // Returns nullopt if the key does not exist.
  virtual Outcome<std::optional<std::string>> find(const std::string& key) = 0;
  // Sets the keys of `sets` and then finds the keys of `gets`, in this order. Takes a single round trip if
  // the store supports this.
  struct Query {
    std::vector<std::pair<std::string, std::string>> sets{};
    std::vector<std::string> gets{};
  };
  virtual Outcome<std::vector<std::optional<std::string>>> query(const Query& query);
  // Increments the counter under this key and returns its new value.
  virtual Outcome<std::int64_t> increment(const std::string& key) = 0;
  // Registers a last-will: when this process ends for any reason, the store sets the key to the value unless
  // the key exists. A new last-will replaces the previous one, and an empty key removes it. Only a
  // StoreServer supports this. etcd does not notice when a process ends, so with etcd this call has no
  // effect.
  virtual Outcome<void> set_last_will(const std::string& key, const std::string& value) = 0;
  // Removes all keys of the run. A StoreServer ends with the run, so only etcd needs this.
  virtual Outcome<void> clear() = 0;
  // The numeric addresses of the two ends of the connection: own_address() is the address of this machine,
  // and store_address() is the address of the store.
  virtual std::string own_address() const = 0;
  virtual std::string store_address() const = 0;
};

struct StoreAddress {
  std::string host = "127.0.0.1";
  int port = 0;
  std::string token{};   // the token of the run
  bool is_etcd = false;  // otherwise a StoreServer
};
// Parses "etcd://host:port". Throws a UserError if the text has another form.
StoreAddress parse_store(const std::string& text, const std::string& token);

// Connects to the store. Retries until the deadline.
Outcome<std::unique_ptr<KeyStore>> open_store(const StoreAddress& address, const Deadline& deadline);
// Connects to a StoreServer in a single attempt.
Outcome<std::unique_ptr<KeyStore>> open_tcp_store(const StoreAddress& address, const Deadline& deadline);
// Like the overload above, but with separate deadlines: connecting fails fast if the host is lost, while a
// busy store may respond late.
Outcome<std::unique_ptr<KeyStore>> open_tcp_store(const StoreAddress& address,
                                                  const Deadline& connect_deadline,
                                                  const Deadline& answer_deadline);
Outcome<std::unique_ptr<KeyStore>> open_etcd_store(const StoreAddress& address, const Deadline& deadline);

// Waits for a key that another process is about to set. Polls often at first, then every 50 ms, and calls
// on_poll() between polls. on_poll() may throw to stop waiting.
template <typename OnPoll>
Outcome<std::string> wait_for_key(KeyStore& store, const std::string& key, const Deadline& deadline,
                                  OnPoll&& on_poll);
void pause_before_query(int num_queries);

template <typename OnPoll>
Outcome<std::string> wait_for_key(KeyStore& store, const std::string& key, const Deadline& deadline,
                                  OnPoll&& on_poll) {
  for (int query = 0;; ++query) {
    Outcome<std::optional<std::string>> value = store.find(key);
    if (!value) return tl::unexpected(value.error());
    if (*value) return std::move(**value);
    if (deadline.has_passed()) return failure("key {} was not set in time ({})", key, deadline.name());
    on_poll();
    pause_before_query(query);
  }
}

}  // namespace optimus
