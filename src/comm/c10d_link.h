// All that we use of c10d: its store, in which processes find each other, and Gloo's messages. c10d's headers take ten seconds to
// compile, so only c10d_link.cpp sees them. Gloo's own collectives are not used: they cannot be ended before their time-out, and
// for small tensors ours are faster (docs/decisions/0008-collectives-from-messages.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "comm/link.h"

namespace optimus {

// Hosts the store of a run on the loopback interface, at a port that the system chooses. Ends with its destructor.
class StoreServer {
 public:
  StoreServer();  // throws UserError when no port can be had
  ~StoreServer();
  int port() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// A rank's connection to the store. Any thread. Calls fail rather than wait longer than a few seconds, unless told.
class StoreClient {
 public:
  struct Place {
    std::string host = "127.0.0.1";
    int port = 0;
    std::string token{};    // of the run: keys of another run are others
    std::string address{};  // of this machine, where other ranks reach it
  };
  static Outcome<std::unique_ptr<StoreClient>> connect(const Place& place, const Deadline& deadline);
  ~StoreClient();

  Outcome<void> set(const std::string& key, const std::string& value);
  // Nothing when the key is not there.
  Outcome<std::optional<std::string>> find(const std::string& key);
  // One more of those who come under this key; how many there are then.
  Outcome<std::int64_t> count(const std::string& key);

  // Connects to the other members under a key that they all use, each once. All must be about to call this.
  Outcome<std::unique_ptr<Wire>> link(const std::string& key, int place, int size, const Deadline& deadline);

 private:
  struct Parts;
  explicit StoreClient(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace optimus
