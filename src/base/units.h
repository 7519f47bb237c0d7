// Quantities that do not convert implicitly: Bytes, Seconds, Flops, Rank.
//
// Quantities of the same kind can be added, subtracted and divided, and a quantity can be scaled by a plain
// number. The quotient of two quantities is a plain number. The functions that parse ("70GiB", "15T", "10m")
// and print ("70.0 GiB") quantities are here too, so that every command accepts and shows sizes, counts and
// durations in the same form.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace optimus {

template <typename Tag, typename Number>
struct Quantity {
  Number value{};

  constexpr Quantity() = default;
  constexpr explicit Quantity(Number number) : value(number) {}

  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity& operator+=(Quantity other) { return value += other.value, *this; }
  constexpr Quantity& operator-=(Quantity other) { return value -= other.value, *this; }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.value + b.value); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.value - b.value); }
  friend constexpr Quantity operator*(Quantity a, Number factor) { return Quantity(a.value * factor); }
  friend constexpr Quantity operator*(Number factor, Quantity a) { return Quantity(a.value * factor); }
  friend constexpr double operator/(Quantity a, Quantity b) {
    return static_cast<double>(a.value) / static_cast<double>(b.value);
  }
};

using Bytes = Quantity<struct BytesTag, std::int64_t>;
using Seconds = Quantity<struct SecondsTag, double>;
using Flops = Quantity<struct FlopsTag, double>;

// The index of a worker in the run, starting at 0. It has no arithmetic, because the sum of two ranks is
// meaningless.
struct Rank {
  int value = 0;
  constexpr auto operator<=>(const Rank&) const = default;
};

// Parses "512", "70GiB", "70 GiB", "1.5MB", "2k". SI suffixes are powers of 1000, and Ki/Mi/Gi/Ti are powers
// of 1024. Throws a UserError that names `setting_name` ("--max-memory") if the text is not a size or
// overflows.
Bytes parse_bytes(std::string_view text, std::string_view setting_name);
// Parses "1000", "15T", "1.5B", "300k", "2M". B and G both mean 1e9, as is usual for parameter counts.
std::int64_t parse_count(std::string_view text, std::string_view setting_name);
// Parses "90", "90s", "10m", "1.5h", "30d", "250ms".
Seconds parse_seconds(std::string_view text, std::string_view setting_name);

std::string text(Bytes bytes);                 // "1.50 GiB"
std::string text(Seconds seconds);             // "1.2 ms", "3 m 20 s"
std::string percent(double fraction);          // "12.3 %"
std::string text(Flops flops);                 // "312 TFLOP"
std::string short_count(double number);        // "8.03 B"
std::string with_commas(std::int64_t number);  // "8,030,261,248"

}  // namespace optimus
