// Lets ranks on one machine find the run's store under any launcher: a file that only this user can read
// contains the store's port on the loopback interface and its token. Users need not choose a port, and two
// runs do not interfere.
#pragma once

#include <optional>
#include <string>

#include "base/file.h"
#include "cluster/launcher.h"

namespace optimus {

struct RendezvousAddress {
  int port = 0;
  std::string token;
};

// The name depends on the job and the network namespace, so hosts that share folders use different files.
// The file is in $XDG_RUNTIME_DIR, otherwise in /tmp/optimus-UID, which is created. Throws UserError if that
// folder does not belong to this user alone.
Path rendezvous_file(const Environment& environment, const std::string& job);

// Written by rank 0 and removed by the destructor, unless another run has replaced it; files of processes
// that were killed are removed, too. Throws RuntimeFailure.
class RendezvousFile {
 public:
  RendezvousFile(Path path, const RendezvousAddress& address);
  ~RendezvousFile();
  RendezvousFile(const RendezvousFile&) = delete;

 private:
  const Path path_;
  const RendezvousAddress address_;
};

// nullopt if the file does not exist or is invalid. A file that an earlier run left behind names a port
// without a listener, or a server that rejects its token; the caller should then read the file again later.
std::optional<RendezvousAddress> read_rendezvous_file(const Path& path);

}  // namespace optimus
