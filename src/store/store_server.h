// The store of a run, hosted by whoever starts it: a thread that keeps keys and values for those who know the run's token.
//
// Others do no harm and learn nothing: a connection has 2 seconds to give the token, in a line of limited length; until then it has
// a few hundred bytes of memory, and of such connections the oldest gives way when there are too many. What clients may keep here
// is limited, too. The token crosses the network as it is: who can read the run's traffic can read its gradients as well.
#pragma once

#include <memory>
#include <string>

#include "store/socket.h"

namespace optimus {

struct StoreServerOptions {
  // None: whoever reaches the port may come, and those of different tokens see different keys. Only on the loopback interface.
  std::string token{};
  Listening where = Listening::on_loopback;
  int port = 0;  // 0: any that is free
};

class StoreServer {
 public:
  // Throws UserError when the port cannot be had.
  explicit StoreServer(StoreServerOptions options = {});
  // Ends all connections.
  ~StoreServer();
  int port() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Takes as long whatever the texts are, as far as they have the same length.
bool is_same_secret(std::string_view one, std::string_view other);

}  // namespace optimus
