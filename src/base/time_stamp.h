// UTC time stamps at the start of log lines: "2026-11-16 10:57:33.123456 ". With them, the lines of several
// logs can be merged in order.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace optimus {

using WallClock = std::chrono::system_clock;

// Returns a time stamp such as "2026-11-16 10:57:33.123456 ", including the trailing space.
std::string time_stamp(WallClock::time_point time = WallClock::now());
// The time stamp at the start of a log line, in microseconds since 1970, or nullopt if the line has none.
std::optional<std::int64_t> find_time_stamp(std::string_view line);
inline constexpr std::size_t kTimeStampLength = 27;

}  // namespace optimus
