// The time at the beginning of a line of a log, in UTC: "2026-11-16 10:57:33.123456 ". Lines of several logs are brought into one order by it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace optimus {

using WallClock = std::chrono::system_clock;

// As above, with the space.
std::string time_stamp(WallClock::time_point time = WallClock::now());
// Microseconds since 1970 of a line that begins so; nothing when it does not.
std::optional<std::int64_t> find_time_stamp(std::string_view line);
inline constexpr std::size_t kTimeStampLength = 27;

}  // namespace optimus
