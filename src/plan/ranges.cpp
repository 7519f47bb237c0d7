// See ranges.h.
#include "plan/ranges.h"

#include <fmt/format.h>
#include <charconv>

#include "base/error.h"
#include "base/text.h"
#include "plan/plan.h"

namespace optimus {

std::string ranges_text(const std::vector<int>& numbers) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    parts.push_back(end - i == 1 ? std::to_string(numbers[i])
                                 : fmt::format("{}..{}", numbers[i], numbers[end - 1]));
    i = end;
  }
  return join(parts, ",");
}

std::vector<int> parse_ranges(const std::string& text, const std::string& location) {
  const auto refuse = [&]() -> void {
    throw UserError("{}: expected numbers and ranges such as 0..7,12, got {}", location, in_quotes(text));
  };
  const auto parse_number = [&](std::string_view word) {
    int value = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc{} || rest != word.data() + word.size() || value < 0) refuse();
    return value;
  };
  std::vector<int> numbers;
  for (const std::string& part : split(text, ',')) {
    const std::size_t dots = part.find("..");
    const int first = parse_number(std::string_view(part).substr(0, dots));
    const int last =
        dots == std::string::npos ? first : parse_number(std::string_view(part).substr(dots + 2));
    if (last < first) refuse();
    if (last - first >= kMaxPlanDevices || std::ssize(numbers) + last - first >= kMaxPlanDevices)
      throw UserError("{}: {} has more than {} numbers", location, in_quotes(text), kMaxPlanDevices);
    for (int n = first; n <= last; ++n) numbers.push_back(n);
  }
  return numbers;
}

}  // namespace optimus
