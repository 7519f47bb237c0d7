// Where ranks of one machine meet, whoever started them: a file that only this user may read tells the port of the run's store on
// the loopback interface, and its token. So nobody has to choose a port, and two runs do not meet.
#pragma once

#include <optional>
#include <string>

#include "base/file.h"
#include "cluster/launcher.h"

namespace optimus {

struct MeetingPlace {
  int port = 0;
  std::string token;
};

// By the job and the network namespace: hosts that share folders do not meet. In $XDG_RUNTIME_DIR, else in /tmp/optimus-UID, which is
// made and must be this user's alone: throws UserError when it is not.
Path meeting_file(const Environment& environment, const std::string& job);

// Written by rank 0, and removed with this object, unless it is another's by then; files of others whose process was killed are
// removed, too. Throws UserError.
class MeetingFile {
 public:
  MeetingFile(Path path, const MeetingPlace& place);
  ~MeetingFile();
  MeetingFile(const MeetingFile&) = delete;

 private:
  const Path path_;
  const MeetingPlace place_;
};

// Nothing when there is none, or none that can be understood. One that an earlier run left leads to a port where nobody listens, or
// to somebody who does not know its token: read it again then.
std::optional<MeetingPlace> read_meeting(const Path& path);

}  // namespace optimus
