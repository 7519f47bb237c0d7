// Rendezvous of ranks that were started by an external launcher. Rank 0 hosts the store, or all ranks use
// etcd. The other ranks send join requests, and rank 0 replies with all settings. Only the store is needed:
// hosts do not have to share a file system until the run's folder is used.
//
//   other ranks                                store       rank 0
//   join request {nonce, host, pid, …}  ──>            <── reads all join requests
//   reads its reply                     <──            <── join reply of each nonce {session, settings}
//
// If a rank fails in the meantime, its last-will sets the key `gone`, and the run does not start. Each rank
// uses a random nonce, so that it never reads a reply that an earlier run left in etcd.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/json.h"
#include "cluster/launcher.h"
#include "cluster/token.h"
#include "launch/join_request.h"
#include "store/key_store.h"

namespace optimus {

// Access to torchrun's store. If torchrun uses MASTER_PORT, ranks on several hosts find rank 0's store
// through it. The functions are implemented in comm/, on which this folder does not depend.
struct TorchStore {
  std::function<void(const std::string& host, int port, const std::string& key, const std::string& value)>
      announce;
  // Returns the value if it is available within a short time.
  std::function<std::optional<std::string>(const std::string& host, int port, const std::string& key)> poll;
};

struct RendezvousOptions {
  LaunchInfo launch;
  std::optional<Token> token{};
  std::string store{};  // etcd://host:port; if empty, rank 0 hosts the store
  TorchStore torch{};
  std::function<void()> check_interrupted = [] {};  // throws when the user interrupts
  Seconds timeout{600};
};

// The result of the rendezvous, on all ranks.
struct RendezvousResult {
  StoreAddress address;
  std::shared_ptr<KeyStore> store;  // shared with a thread that polls it
  std::string prefix;               // prepended to all keys of this run
  std::vector<PresentRank> ranks;
  Json settings;
};

// The key under `prefix` that is set to a description when a rank has failed or disconnected. The run must
// then end. The last-will of each rank sets this key.
inline constexpr const char* kEndedKey = "ended";

// Rank 0's side of the rendezvous. Must exist until the end of the run.
class Rendezvous {
 public:
  // Hosts the store and publishes its address. Throws UserError if the token or the port is missing, or if
  // etcd is unreachable.
  explicit Rendezvous(RendezvousOptions options);
  ~Rendezvous();

  // Waits for the other ranks. `report_progress` is called with a line about missing ranks. Throws
  // ReportedError if they do not join in time.
  std::vector<PresentRank> wait_for_others(const std::function<void(const std::string&)>& report_progress);
  RendezvousResult send_join_replies(const Json& settings);
  // Informs all ranks that join within the next few seconds that the run does not start. Never throws.
  void refuse(const std::string& why);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The other ranks' side of the rendezvous. Throws UserError if rank 0 is not found in time, and RankRefused
// if rank 0 refuses the run.
RendezvousResult join_rendezvous(const RendezvousOptions& options);

// Thrown on the other ranks when rank 0 has refused the run and has already reported the reason to the user.
struct RankRefused {
  std::string why;
};

}  // namespace optimus
