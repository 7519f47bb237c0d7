// Implements heartbeat.h.
#include "elastic/heartbeat.h"

#include <charconv>

namespace optimus {

std::string text(const Heartbeat& heartbeat) {
  return fmt::format("{} {} {:.3f} {}", heartbeat.number, heartbeat.step, heartbeat.waiting,
                     heartbeat.hang_description);
}

std::optional<Heartbeat> parse_heartbeat(const std::string& text) {
  Heartbeat heartbeat;
  const char* const end = text.data() + text.size();
  const auto number = std::from_chars(text.data(), end, heartbeat.number);
  if (number.ec != std::errc() || number.ptr == end || *number.ptr != ' ') return std::nullopt;
  const auto step = std::from_chars(number.ptr + 1, end, heartbeat.step);
  if (step.ec != std::errc() || step.ptr == end || *step.ptr != ' ') return std::nullopt;
  const auto waiting = std::from_chars(step.ptr + 1, end, heartbeat.waiting);
  if (waiting.ec != std::errc() || waiting.ptr == end || *waiting.ptr != ' ') return std::nullopt;
  heartbeat.hang_description.assign(waiting.ptr + 1, end);
  return heartbeat;
}

}  // namespace optimus
