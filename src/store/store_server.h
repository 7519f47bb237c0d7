// StoreServer: the store of a run, hosted by the process that starts the run. A thread stores keys and values
// for clients that know the token of the run.
//
// Unauthenticated clients cannot cause harm or read data: a connection must send the token within 2 seconds,
// in a line of limited length. Until then it uses only a few hundred bytes of memory, and if there are too
// many such connections, the oldest one is closed. The memory of authenticated clients is limited as well.
// The token is sent in plain text. This is acceptable because an attacker who can read the traffic of the run
// can read its gradients too.
#pragma once

#include <memory>
#include <string>

#include "store/socket.h"

namespace optimus {

struct StoreServerOptions {
  // If empty, any client may connect, and clients with different tokens have separate keys. Allowed only on
  // the loopback interface.
  std::string token{};
  Listening interface = Listening::on_loopback;
  int port = 0;  // 0 means any free port
};

class StoreServer {
 public:
  // Throws a RuntimeFailure if the port is not available.
  explicit StoreServer(StoreServerOptions options = {});
  // Closes all connections.
  ~StoreServer();
  int port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Compares two secrets in a time that depends only on their lengths, not on where they differ.
bool is_same_secret(std::string_view a, std::string_view b);

}  // namespace optimus
