// Keys by which a rank's process shows that it lives.
#pragma once

#include <fmt/format.h>

#include <string>

namespace optimus {

// Under which a rank counts its looks (rank_watch.h): a process that is stopped does not.
inline std::string pulse_key(int seat) { return fmt::format("pulse/{}", seat); }
// Set by its will, when the process ends.
inline std::string gone_key(int seat) { return fmt::format("gone/{}", seat); }
// Where its own store is, for when the run's is gone: "host:port".
inline std::string standby_key(int seat) { return fmt::format("standby/{}", seat); }

}  // namespace optimus
