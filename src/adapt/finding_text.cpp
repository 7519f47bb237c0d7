// Implements finding_text.h, and text(Finding) of detect.h.
#include "adapt/finding_text.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/text.h"

namespace optimus {
namespace {

constexpr std::string_view kBetween = "–", kTimes = "x since step ";

std::optional<Cause> cause_at(std::string_view finding_text, std::size_t& length) {
  std::optional<Cause> best;
  length = 0;
  for (int i = 0; i <= static_cast<int>(Cause::memory); ++i) {
    const std::string name = optimus::text(static_cast<Cause>(i));
    if (!starts_with(finding_text, name) || name.size() <= length) continue;
    best = static_cast<Cause>(i), length = name.size();
  }
  return best;
}

// Reads a number at the start of `text` and removes it from `text`.
template <typename Number>
std::optional<Number> read_number(std::string_view& text) {
  Number value{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

// "slow network of node 0–1: 1.39x since step 60"
std::optional<RecordedFinding> finding_in(std::string_view text) {
  std::size_t length = 0;
  const std::optional<Cause> cause = cause_at(text, length);
  const std::size_t colon = text.find(": ");
  if (!cause || colon == std::string_view::npos || colon < length) return std::nullopt;
  RecordedFinding finding{.cause = word_of(*cause)};
  std::string_view places = text.substr(length, colon - length);
  while (starts_with(places, " ") || starts_with(places, kBetween)) {
    places.remove_prefix(starts_with(places, " ") ? 1 : kBetween.size());
    const auto place = read_number<int>(places);
    if (!place) break;
    finding.locations.push_back(*place);
  }
  text.remove_prefix(colon + 2);
  const auto factor = read_number<double>(text);
  if (!factor || !starts_with(text, kTimes)) return std::nullopt;
  text.remove_prefix(kTimes.size());
  const auto begin_step = read_number<std::int64_t>(text);
  if (!begin_step) return std::nullopt;
  finding.factor = *factor, finding.begin_step = *begin_step;
  return finding;
}

}  // namespace

std::string text(const Finding& finding) {
  std::string location;
  for (const int place : finding.locations)
    location += fmt::format("{}{}", location.empty() ? " " : kBetween, place);
  if (finding.locations.size() > 4)
    location = fmt::format(" {} and {} others", finding.locations[0], finding.locations.size() - 1);
  const std::string clock = finding.clock > 0 ? fmt::format(" (clock at {:.2f})", finding.clock) : "";
  return fmt::format("{}{}: {:.2f}{}{}{}", text(finding.cause), location, finding.factor, kTimes,
                     finding.begin_step, clock);
}

std::vector<RecordedFinding> recorded(const std::vector<Finding>& findings) {
  std::vector<RecordedFinding> result;
  for (const Finding& finding : findings)
    if (is_mitigable_by_plan(finding.cause))
      result.push_back({word_of(finding.cause), finding.locations, finding.factor, finding.begin_step});
  return result;
}

std::vector<RecordedFinding> parse_findings(std::string_view evidence) {
  std::vector<RecordedFinding> findings;
  for (const std::string& part : split(std::string(evidence), ','))
    if (const auto finding = finding_in(trim(part))) findings.push_back(*finding);
  return findings;
}

}  // namespace optimus
