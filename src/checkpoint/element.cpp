// See element.h.
#include "checkpoint/element.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/error.h"

namespace optimus {
namespace {

static_assert(std::endian::native == std::endian::little);  // stored numbers are copied with memcpy

struct TypeRow {
  ElementType type;
  std::string_view name;
  std::int64_t width;
  bool is_float;
};

constexpr std::array kTypes{
    TypeRow{ElementType::f64, "F64", 8, true},   TypeRow{ElementType::f32, "F32", 4, true},
    TypeRow{ElementType::bf16, "BF16", 2, true}, TypeRow{ElementType::f16, "F16", 2, true},
    TypeRow{ElementType::i64, "I64", 8, false},  TypeRow{ElementType::i32, "I32", 4, false},
    TypeRow{ElementType::i16, "I16", 2, false},  TypeRow{ElementType::i8, "I8", 1, false},
    TypeRow{ElementType::u8, "U8", 1, false},    TypeRow{ElementType::boolean, "BOOL", 1, false},
};

const TypeRow& row(ElementType type) { return kTypes.at(static_cast<std::size_t>(type)); }

float from_bf16(std::uint16_t stored) { return std::bit_cast<float>(std::uint32_t{stored} << 16); }

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  // Sets the quiet bit, so that truncation does not turn the NaN into an infinity.
  if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Half precision has 1 sign bit, 5 exponent bits with bias 15, and 10 fraction bits. Single precision has
// bias 127 and 23 fraction bits.
float from_half(std::uint16_t stored) {
  const std::uint32_t sign = std::uint32_t{stored} << 16 & 0x80000000, magnitude = stored & 0x7fff;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | magnitude << 13);
  if (magnitude >= 0x400) return std::bit_cast<float>(sign | ((magnitude << 13) + (112 << 23)));
  return std::copysign(static_cast<float>(magnitude) * 0x1p-24F, std::bit_cast<float>(sign | 0x3f800000));
}

std::uint16_t to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
  if (magnitude < 0x38800000)                         // below 2^-14: a multiple of 2^-24
    return static_cast<std::uint16_t>(sign | static_cast<int>(std::nearbyint(std::fabs(value) * 0x1p24F)));
  magnitude += 0xfff + (magnitude >> 13 & 1);
  return static_cast<std::uint16_t>(sign | ((magnitude >> 13) - (112 << 10)));
}

// Rounds to single precision so that a second rounding to fewer bits gives the same result as rounding once.
// For this, an inexact result becomes the neighbor whose last bit is 1 ("round to odd").
float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (bits & 1) return nearest;
  const bool is_beyond = std::fabs(static_cast<double>(nearest)) > std::fabs(value);
  return std::bit_cast<float>(is_beyond ? bits - 1 : bits + 1);
}

template <typename Stored, typename Real, typename Convert>
void decode_each(std::span<const std::byte> bytes, std::span<Real> values, Convert convert) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    values[i] = static_cast<Real>(convert(stored));
  }
}

template <typename Stored, typename Real, typename Convert>
void encode_each(std::span<const Real> values, std::span<std::byte> bytes, Convert convert) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Stored stored = convert(values[i]);
    std::memcpy(bytes.data() + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

void check_sizes(ElementType type, std::size_t num_bytes, std::size_t num_values) {
  ensure(is_float(type), "{} is not a float type", text(type));
  ensure(num_bytes == num_values * static_cast<std::size_t>(width(type)),
         "{} bytes do not match {} values of type {}", num_bytes, num_values, text(type));
}

// Whether elements of type `type` can be copied without conversion.
template <typename Real>
bool is_stored_as(ElementType type) {
  return type == (std::is_same_v<Real, float> ? ElementType::f32 : ElementType::f64);
}

template <typename Real>
void decode_all(ElementType type, std::span<const std::byte> bytes, std::span<Real> values) {
  check_sizes(type, bytes.size(), values.size());
  if (is_stored_as<Real>(type)) {
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return;
  }
  const auto as_is = [](auto stored) { return stored; };
  if (type == ElementType::f64) return decode_each<double>(bytes, values, as_is);
  if (type == ElementType::f32) return decode_each<float>(bytes, values, as_is);
  if (type == ElementType::bf16) return decode_each<std::uint16_t>(bytes, values, from_bf16);
  decode_each<std::uint16_t>(bytes, values, from_half);
}

float rounded_to_float(float value) { return value; }
float rounded_to_float(double value) { return round_to_odd(value); }

template <typename Real>
void encode_all(ElementType type, std::span<const Real> values, std::span<std::byte> bytes) {
  check_sizes(type, bytes.size(), values.size());
  if (is_stored_as<Real>(type)) {
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return;
  }
  if (type == ElementType::f64)
    return encode_each<double>(values, bytes, [](Real value) { return static_cast<double>(value); });
  if (type == ElementType::f32)
    return encode_each<float>(values, bytes, [](Real value) { return static_cast<float>(value); });
  if (type == ElementType::bf16)
    return encode_each<std::uint16_t>(values, bytes,
                                      [](Real value) { return to_bf16(rounded_to_float(value)); });
  encode_each<std::uint16_t>(values, bytes, [](Real value) { return to_half(rounded_to_float(value)); });
}

}  // namespace

std::string_view text(ElementType type) { return row(type).name; }
std::int64_t width(ElementType type) { return row(type).width; }
bool is_float(ElementType type) { return row(type).is_float; }

std::optional<ElementType> find_element_type(std::string_view name) {
  const auto row = std::find_if(kTypes.begin(), kTypes.end(),
                                [&](const TypeRow& candidate) { return candidate.name == name; });
  if (row == kTypes.end()) return std::nullopt;
  return row->type;
}

std::string element_type_names() {
  std::string result;
  for (const TypeRow& type : kTypes) result.append(result.empty() ? "" : ", ").append(type.name);
  return result;
}

void decode(ElementType type, std::span<const std::byte> bytes, std::span<float> values) {
  decode_all(type, bytes, values);
}
void decode(ElementType type, std::span<const std::byte> bytes, std::span<double> values) {
  decode_all(type, bytes, values);
}
void encode(ElementType type, std::span<const float> values, std::span<std::byte> bytes) {
  encode_all(type, values, bytes);
}
void encode(ElementType type, std::span<const double> values, std::span<std::byte> bytes) {
  encode_all(type, values, bytes);
}

}  // namespace optimus
