// With any launcher, ranks on one machine find the run's store through a file that only this user can read.
// It contains the store's port on the loopback interface and its token. So users do not have to choose a
// port, and two runs do not interfere.
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

// Returns the path of the file. The name depends on the job and the network namespace, so hosts that share
// folders use different files. The folder is $XDG_RUNTIME_DIR if that is set, otherwise /tmp/optimus-UID,
// which is created. Throws UserError if other users can access the folder.
Path rendezvous_file(const Environment& environment, const std::string& job);

// Rank 0 writes the file. The destructor removes it unless another run has replaced it. Files of killed
// processes are also removed. Throws RuntimeFailure if the file cannot be written.
class RendezvousFile {
 public:
  RendezvousFile(Path path, const RendezvousAddress& address);
  ~RendezvousFile();
  RendezvousFile(const RendezvousFile&) = delete;

 private:
  const Path path_;
  const RendezvousAddress address_;
};

// Returns nullopt if the file does not exist or is invalid. The file may be left over from an earlier run. In
// that case either no server listens on its port, or the server rejects its token, and the caller should read
// the file again later.
std::optional<RendezvousAddress> read_rendezvous_file(const Path& path);

}  // namespace optimus
