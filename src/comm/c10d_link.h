// All that we use of c10d: Gloo's messages between processes that find each other in a store of ours (store/key_store.h). c10d's
// headers take ten seconds to compile, so only c10d_link.cpp sees them. Gloo's own collectives are not used: they cannot be ended before their time-out, and
// for small tensors ours are faster (docs/decisions/0008-collectives-from-messages.md).
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

// A rank's connection to the store. Any thread. Calls fail rather than wait longer than a few seconds, unless told.
class StoreClient {
 public:
  struct Place {
    std::string host = "127.0.0.1";
    int port = 0;
    std::string token{};    // of the run
    std::string address{};  // of this machine, where other ranks reach it
    bool is_etcd = false;   // as StorePlace has it
    std::string prefix{};   // before every key
    std::shared_ptr<KeyStore>
        store{};  // one that is open; then nothing of the others but address and prefix counts
  };
  static Outcome<std::unique_ptr<StoreClient>> connect(const Place& place, const Deadline& deadline);
  ~StoreClient();

  Outcome<void> set(const std::string& key, const std::string& value);
  // Nothing when the key is not there.
  Outcome<std::optional<std::string>> find(const std::string& key);
  // One more of those who come under this key; how many there are then.
  Outcome<std::int64_t> count(const std::string& key);

  // Connects to the other members under a key that they all use, each once. All must be about to call this. given_up is asked meanwhile:
  // when it has a reason, that is the failure, at once.
  using GivenUp = std::function<std::optional<std::string>()>;
  Outcome<std::unique_ptr<Wire>> link(const std::string& key, int place, int size, const Deadline& deadline,
                                      const GivenUp& given_up);

 private:
  struct Parts;
  explicit StoreClient(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// torchrun listens at MASTER_PORT itself, with a store of c10d's that anybody may read: our store's place is announced there, and
// nothing that is secret.
Outcome<void> announce_in_torch_store(const std::string& host, int port, const std::string& key,
                                      const std::string& value, const Deadline& deadline);
// Waits until it is there.
Outcome<std::string> read_from_torch_store(const std::string& host, int port, const std::string& key,
                                           const Deadline& deadline);

}  // namespace optimus
