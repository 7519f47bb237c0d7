// How ranks that somebody's launcher started become a run: rank 0 hosts the store (or all use etcd), each of the others says that
// it is there, and gets everything it must know in the answer. Nothing but the store is needed for that: hosts need not share a
// file until the run's folder is used.
//
//   others                               store                              rank 0
//   hello/R = {nonce, host, pid, …}  ──>                   <── all hellos
//                                        <── welcome/NONCE = {session, what rank 0 has resolved}
//
// A rank that dies meanwhile leaves a will under gone, and there is no run. A nonce is a rank's own, so that nobody is answered by what an earlier run left in etcd.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/json.h"
#include "cluster/launcher.h"
#include "cluster/token.h"
#include "launch/hello.h"
#include "store/key_store.h"

namespace optimus {

// How the processes of a run on several hosts learn where rank 0's store is, when torchrun's own store has MASTER_PORT. From comm/,
// which this does not include.
struct TorchStore {
  std::function<void(const std::string& host, int port, const std::string& key, const std::string& value)>
      announce;
  // The value when it is there within a short while.
  std::function<std::optional<std::string>(const std::string& host, int port, const std::string& key)> look;
};

struct GatheringOptions {
  LaunchInfo launch;
  std::optional<Token> token{};
  std::string store{};  // etcd://host:port; empty: one of ours
  TorchStore torch{};
  std::function<void()> check_interrupted = [] {};  // throws when the user wants the end
  Seconds patience{600};
};

// What both sides have afterwards.
struct Gathered {
  StorePlace place;
  std::shared_ptr<KeyStore> store;  // shared: with a thread that looks into it
  std::string prefix;               // before all keys of this run
  std::vector<PresentRank> ranks;
  Json settings;
};

// Under the prefix: who has failed, or is gone; the run is to end. A rank that has gathered has a will for it.
inline constexpr const char* kEndedKey = "ended";

// Of rank 0. Lives as long as the run.
class Gathering {
 public:
  // Hosts the store and says where it is. Throws UserError: no token, no port, etcd is not reached.
  explicit Gathering(GatheringOptions options);
  ~Gathering();

  // Waits for the others. `tell` gets a line about who is missing. Throws UserError when they do not come.
  std::vector<PresentRank> wait_for_others(const std::function<void(const std::string&)>& tell);
  Gathered welcome(const Json& settings);
  // Tells all who come within a few seconds that there is no run; never throws.
  void refuse(const std::string& why);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Of the others. Throws UserError when rank 0 is not found in time, and RankRefused.
Gathered join_gathering(const GatheringOptions& options);

// Rank 0 has told the user why there is no run.
struct RankRefused {
  std::string why;
};

}  // namespace optimus
