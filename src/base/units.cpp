// Parses and prints sizes, counts and durations, with one table of suffixes for each.
#include "base/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

using Suffix = std::pair<std::string_view, double>;

constexpr Suffix kByteSuffixes[] = {
    {"", 1},         {"b", 1},        {"k", 1e3},     {"kb", 1e3},       {"m", 1e6},      {"mb", 1e6},
    {"g", 1e9},      {"gb", 1e9},     {"t", 1e12},    {"tb", 1e12},      {"kib", 1024.0}, {"mib", 1048576.0},
    {"gib", 0x1p30}, {"tib", 0x1p40}, {"ki", 1024.0}, {"mi", 1048576.0}, {"gi", 0x1p30},  {"ti", 0x1p40}};
constexpr Suffix kCountSuffixes[] = {{"", 1}, {"k", 1e3}, {"m", 1e6}, {"b", 1e9}, {"g", 1e9}, {"t", 1e12}};
constexpr Suffix kTimeSuffixes[] = {{"", 1},   {"ms", 1e-3}, {"s", 1},    {"sec", 1},
                                    {"m", 60}, {"min", 60},  {"h", 3600}, {"d", 86400}};

double parse_scaled(std::string_view text, std::span<const Suffix> suffixes, std::string_view setting_name,
                    std::string_view example) {
  const std::string_view trimmed = trim(text);
  double number = 0;
  const auto [rest, error] = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), number);
  const std::string suffix = lower(trim(std::string_view(rest, trimmed.data() + trimmed.size() - rest)));
  if (error == std::errc{} && std::isfinite(number) && number >= 0)
    for (const auto& [name, factor] : suffixes)
      if (name == suffix) return number * factor;
  throw UserError("{}: {} is not {}", setting_name, in_quotes(text), example);
}

std::int64_t to_integer(double number, std::string_view text, std::string_view setting_name) {
  // 2^63 is the smallest double that exceeds the range of int64.
  if (number >= 0x1p63) throw UserError("{}: {} is too large", setting_name, in_quotes(text));
  return static_cast<std::int64_t>(std::llround(number));
}

}  // namespace

Bytes parse_bytes(std::string_view text, std::string_view setting_name) {
  return Bytes(
      to_integer(parse_scaled(text, kByteSuffixes, setting_name, "a size such as 512, 1.5MB or 70GiB"), text,
                 setting_name));
}

std::int64_t parse_count(std::string_view text, std::string_view setting_name) {
  const std::string_view trimmed = trim(text);
  std::int64_t exact = 0;
  const auto [rest, error] = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), exact);
  if (error == std::errc{} && rest == trimmed.data() + trimmed.size() && exact >= 0) return exact;
  const double number = parse_scaled(text, kCountSuffixes, setting_name, "a count such as 1000, 300k or 15T");
  const std::int64_t count = to_integer(number, text, setting_name);
  // A tolerance is needed because 2.01 * 1000 is not exactly 2010 in floating point.
  if (std::abs(number - static_cast<double>(count)) > 1e-9 * number)
    throw UserError("{}: {} is not an integer", setting_name, in_quotes(text));
  return count;
}

Seconds parse_seconds(std::string_view text, std::string_view setting_name) {
  return Seconds(parse_scaled(text, kTimeSuffixes, setting_name, "a duration such as 90, 10m or 1.5h"));
}

std::string text(Bytes bytes) {
  constexpr std::array names = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double amount = static_cast<double>(bytes.value);
  std::size_t unit = 0;
  while (std::abs(amount) >= 1024 && unit + 1 < names.size()) amount /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes.value) : fmt::format("{:.2f} {}", amount, names[unit]);
}

std::string text(Seconds seconds) {
  const double s = seconds.value;
  if (s < 1e-3) return fmt::format("{:.1f} us", s * 1e6);
  if (s < 1) return fmt::format("{:.1f} ms", s * 1e3);
  if (s < 120) return fmt::format("{:.1f} s", s);
  if (s < 7200) return fmt::format("{} m {} s", static_cast<int>(s) / 60, static_cast<int>(s) % 60);
  if (s < 172800) return fmt::format("{:.1f} h", s / 3600);
  return fmt::format("{:.1f} d", s / 86400);
}

std::string text(Flops flops) {
  constexpr std::array names = {"FLOP", "KFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP"};
  double amount = flops.value;
  std::size_t unit = 0;
  while (std::abs(amount) >= 1000 && unit + 1 < names.size()) amount /= 1000, ++unit;
  return fmt::format("{:.3g} {}", amount, names[unit]);
}

std::string short_count(double number) {
  constexpr std::array names = {"", " K", " M", " B", " T", " P"};
  std::size_t unit = 0;
  while (std::abs(number) >= 1000 && unit + 1 < names.size()) number /= 1000, ++unit;
  return fmt::format("{:.{}f}{}", number, unit == 0 ? 0 : 2, names[unit]);
}

std::string with_commas(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::size_t first = digits[0] == '-' ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string percent(double fraction) {
  const double tenths = std::round(fraction * 1000);
  return fmt::format("{:.1f} %", tenths == 0 ? 0.0 : fraction * 100);  // avoids -0.0
}

}  // namespace optimus
