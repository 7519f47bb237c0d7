// Where the ranks of a run find each other: keys with values, kept by a process that all can reach. Ours (store_server.h), or etcd
// when the user names one. Small things only: addresses, settings, how a rank ended; tensors never come here.
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

// A connection to a store. Any thread. A call fails rather than wait longer than a few seconds.
class KeyStore {
 public:
  virtual ~KeyStore() = default;
  virtual Outcome<void> set(const std::string& key, const std::string& value) = 0;
  // Nothing when the key is not there.
  virtual Outcome<std::optional<std::string>> find(const std::string& key) = 0;
  // Sets keys, then finds others, in their order; one journey for all, where the store can do that.
  struct Look {
    std::vector<std::pair<std::string, std::string>> says{};
    std::vector<std::string> asks{};
  };
  virtual Outcome<std::vector<std::optional<std::string>>> look(const Look& look);
  // One more of those who come under this key; how many there are then.
  virtual Outcome<std::int64_t> count(const std::string& key) = 0;
  // A last will: when this process ends, however that is, the key gets the value, unless it has one. Another will replaces it, one
  // with an empty key takes it back. Only a store of ours does that; etcd never hears of a process's end.
  virtual Outcome<void> set_will(const std::string& key, const std::string& value) = 0;
  // Removes all keys of the run. A store of ours ends with it, so only etcd has something to remove.
  virtual Outcome<void> clear() = 0;
  // Addresses in digits of the connection: this machine's, as it reaches the store, and the store's.
  virtual std::string own_address() const = 0;
  virtual std::string store_address() const = 0;
};

struct StorePlace {
  std::string host = "127.0.0.1";
  int port = 0;
  std::string token{};   // of the run
  bool is_etcd = false;  // else a StoreServer
};
// "etcd://host:port". Throws UserError.
StorePlace parse_store(const std::string& text, const std::string& token);

// Tries until the deadline.
Outcome<std::unique_ptr<KeyStore>> open_store(const StorePlace& place, const Deadline& deadline);
// One attempt of it.
Outcome<std::unique_ptr<KeyStore>> open_tcp_store(const StorePlace& place, const Deadline& deadline);
// The same where the host may be gone, which shows soon, or be there and busy.
Outcome<std::unique_ptr<KeyStore>> open_tcp_store(const StorePlace& place, const Deadline& connects,
                                                  const Deadline& answers);
Outcome<std::unique_ptr<KeyStore>> open_etcd_store(const StorePlace& place, const Deadline& deadline);

// The value of a key that somebody is about to set; asks often at first, then every 50 ms. `goes_on` is asked meanwhile and may throw.
template <typename GoesOn>
Outcome<std::string> wait_for_key(KeyStore& store, const std::string& key, const Deadline& deadline,
                                  GoesOn&& goes_on);
void pause_before_look(int num_looks);

template <typename GoesOn>
Outcome<std::string> wait_for_key(KeyStore& store, const std::string& key, const Deadline& deadline,
                                  GoesOn&& goes_on) {
  for (int look = 0;; ++look) {
    Outcome<std::optional<std::string>> found = store.find(key);
    if (!found) return tl::unexpected(found.error());
    if (*found) return std::move(**found);
    if (deadline.has_passed()) return failure("{} is not there in time ({})", key, deadline.name());
    goes_on();
    pause_before_look(look);
  }
}

}  // namespace optimus
