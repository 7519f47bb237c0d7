// Implements pulse.h.
#include "elastic/pulse.h"

#include <charconv>

namespace optimus {

std::string text(const Pulse& pulse) {
  return fmt::format("{} {} {:.3f} {}", pulse.number, pulse.step, pulse.waiting, pulse.hangs);
}

std::optional<Pulse> parse_pulse(const std::string& text) {
  Pulse pulse;
  const char* const end = text.data() + text.size();
  const auto number = std::from_chars(text.data(), end, pulse.number);
  if (number.ec != std::errc() || number.ptr == end || *number.ptr != ' ') return std::nullopt;
  const auto step = std::from_chars(number.ptr + 1, end, pulse.step);
  if (step.ec != std::errc() || step.ptr == end || *step.ptr != ' ') return std::nullopt;
  const auto waiting = std::from_chars(step.ptr + 1, end, pulse.waiting);
  if (waiting.ec != std::errc() || waiting.ptr == end || *waiting.ptr != ' ') return std::nullopt;
  pulse.hangs.assign(waiting.ptr + 1, end);
  return pulse;
}

}  // namespace optimus
