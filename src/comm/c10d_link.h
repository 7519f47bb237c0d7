// Wraps the part of c10d that this project uses: Gloo's point-to-point messages, with a rendezvous through
// our own store (store/key_store.h). c10d's headers take ten seconds to compile, so only c10d_link.cpp
// includes them. Gloo's own collectives are not used, because they cannot be aborted before their timeout and
// are slower than ours for small tensors (docs/contribute/decisions/0008-collectives-from-messages.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "comm/link.h"
#include "store/key_store.h"
#include "store/store_server.h"

namespace optimus {

// A rank's connection to the store. Thread-safe. Unless stated otherwise, a call fails after a few seconds
// instead of waiting longer.
class StoreClient {
 public:
  struct StoreEndpoint {
    std::string host = "127.0.0.1";
    int port = 0;
    std::string token{};    // the run's access token
    std::string address{};  // the address at which other ranks reach this machine
    bool is_etcd = false;   // the store is an etcd server
    std::string prefix{};   // prepended to every key
    // An open store. If it is set, all other fields except `address` and `prefix` are ignored.
    std::shared_ptr<KeyStore> store{};
  };
  static Outcome<std::unique_ptr<StoreClient>> connect(const StoreEndpoint& address,
                                                       const Deadline& deadline);
  ~StoreClient();

  Outcome<void> set(const std::string& key, const std::string& value);
  // Returns nullopt if the key does not exist.
  Outcome<std::optional<std::string>> find(const std::string& key);
  // Increments the counter of this key and returns its new value.
  Outcome<std::int64_t> increment(const std::string& key);

  // Connects to the other members of a group. All members must call this at about the same time with the same
  // `key`. Each key can be used only once. While connecting, the call polls `abandon_reason`; if that returns
  // a reason, the call fails at once with it.
  using AbandonCheck = std::function<std::optional<std::string>()>;
  Outcome<std::unique_ptr<GroupLink>> link(const std::string& key, int member_index, int size,
                                           const Deadline& deadline, const AbandonCheck& abandon_reason);

 private:
  struct Impl;
  explicit StoreClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// torchrun runs a c10d store on MASTER_PORT, which anyone can read. Publishes the address of our store there,
// but not its token.
Outcome<void> announce_in_torch_store(const std::string& host, int port, const std::string& key,
                                      const std::string& value, const Deadline& deadline);
// Waits until the key exists.
Outcome<std::string> read_from_torch_store(const std::string& host, int port, const std::string& key,
                                           const Deadline& deadline);

}  // namespace optimus
