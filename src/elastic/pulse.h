// By what a rank's process shows in the run's store that it lives, and that its work goes on.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>

namespace optimus {

// Under which a rank shows its pulse (rank_watch.h): a process that is stopped does not.
inline std::string pulse_key(int seat) { return fmt::format("pulse/{}", seat); }
// Set by whoever has begun a step: all have found each other then.
inline constexpr const char* kBegunKey = "begun";
// Set by its will, when the process ends, or by the run's host, when it hangs.
// Set when it is; with kEnded when it is sure that its process is, not only that nobody hears of it.
inline constexpr const char* kEnded = "ended";
inline std::string gone_key(int seat) { return fmt::format("gone/{}", seat); }
// Where its own store is, for when the run's is gone: "host:port".
inline std::string standby_key(int seat) { return fmt::format("standby/{}", seat); }

// What a pulse says beside that it beats.
struct Pulse {
  std::int64_t number = 0;
  std::int64_t step = 0;  // that its training has got to, as all others' had to
  double waiting = 0;     // seconds that it has waited for others
  std::string hangs{};    // what takes far longer than it should, for people; empty: nothing does
};
std::string text(const Pulse& pulse);
// Nothing: it makes no sense.
std::optional<Pulse> parse_pulse(const std::string& text);

}  // namespace optimus
