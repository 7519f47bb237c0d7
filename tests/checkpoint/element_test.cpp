// Stored numbers compared with the definitions of their formats. tests/parity/safetensors_parity.py compares
// them with torch.
#include "checkpoint/element.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace optimus {
namespace {

double value_of(ElementType type, std::uint16_t stored) {
  double value = 0;
  decode(type, std::as_bytes(std::span(&stored, 1)), std::span(&value, 1));
  return value;
}

template <typename Real>
std::uint16_t stored_of(ElementType type, Real value) {
  std::uint16_t stored = 0;
  encode(type, std::span<const Real>(&value, 1), std::as_writable_bytes(std::span(&stored, 1)));
  return stored;
}

// The value according to the definition: sign, biased exponent, fraction.
double defined(std::uint16_t stored, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = stored >> fraction_bits & ((1 << exponent_bits) - 1);
  const double fraction = std::ldexp(stored & ((1 << fraction_bits) - 1), -fraction_bits);
  const double sign = stored & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction != 0 ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
}

class SixteenBits : public testing::TestWithParam<ElementType> {};

TEST_P(SixteenBits, EveryBitPatternRoundTrips) {
  const int exponent_bits = GetParam() == ElementType::f16 ? 5 : 8;
  for (int pattern = 0; pattern < 0x10000; ++pattern) {
    const auto stored = static_cast<std::uint16_t>(pattern);
    const double value = value_of(GetParam(), stored), expected = defined(stored, exponent_bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << pattern;
      ASSERT_TRUE(std::isnan(value_of(GetParam(), stored_of(GetParam(), value)))) << pattern;
      continue;
    }
    ASSERT_EQ(value, expected) << pattern;
    ASSERT_EQ(std::signbit(value), (stored & 0x8000) != 0) << pattern;
    ASSERT_EQ(stored_of(GetParam(), value), stored) << pattern;
    ASSERT_EQ(stored_of(GetParam(), static_cast<float>(value)), stored) << pattern;
  }
}

// A value between two neighbors rounds to the nearer one; in the middle, to the one with an even last bit.
// Some doubles would be rounded to the middle first if they were converted through float.
TEST_P(SixteenBits, RoundsToNearestEven) {
  const int infinity = GetParam() == ElementType::f16 ? 0x7c00 : 0x7f80;
  for (int pattern = 0; pattern + 1 < infinity; ++pattern) {
    const auto low = static_cast<std::uint16_t>(pattern), high = static_cast<std::uint16_t>(pattern + 1);
    const double middle = (value_of(GetParam(), low) + value_of(GetParam(), high)) / 2;
    ASSERT_EQ(stored_of(GetParam(), middle), pattern % 2 == 0 ? low : high) << pattern;
    ASSERT_EQ(stored_of(GetParam(), std::nextafter(middle, 0.0)), low) << pattern;
    ASSERT_EQ(stored_of(GetParam(), std::nextafter(middle, INFINITY)), high) << pattern;
    ASSERT_EQ(stored_of(GetParam(), std::nextafter(static_cast<float>(middle), INFINITY)), high) << pattern;
    ASSERT_EQ(stored_of(GetParam(), -std::nextafter(middle, 0.0)), low | 0x8000) << pattern;
  }
}

TEST_P(SixteenBits, OverflowBecomesInfinity) {
  const std::uint16_t infinity = GetParam() == ElementType::f16 ? 0x7c00 : 0x7f80;
  EXPECT_EQ(stored_of(GetParam(), 1e300), infinity);
  EXPECT_EQ(stored_of(GetParam(), std::numeric_limits<double>::infinity()), infinity);
  EXPECT_EQ(stored_of(GetParam(), std::numeric_limits<float>::max()), infinity);
  EXPECT_EQ(stored_of(GetParam(), -std::numeric_limits<float>::infinity()), infinity | 0x8000);
  EXPECT_EQ(stored_of(GetParam(), 1e-300), 0);
}

INSTANTIATE_TEST_SUITE_P(Types, SixteenBits, testing::Values(ElementType::f16, ElementType::bf16),
                         [](const auto& tested) { return std::string(text(tested.param)); });

TEST(Element, WideTypesNeedNoAlignment) {
  const std::vector<double> values{1.5, -0.0, 1e-310, 3e200};
  std::vector<std::byte> bytes(1 + 8 * values.size());
  encode(ElementType::f64, std::span<const double>(values), std::span(bytes).subspan(1));
  std::vector<double> again(values.size());
  decode(ElementType::f64, std::span<const std::byte>(bytes).subspan(1), std::span(again));
  EXPECT_EQ(std::memcmp(values.data(), again.data(), 8 * values.size()), 0);
}

TEST(Element, NamesAndWidths) {
  EXPECT_EQ(element_type_names(), "F64, F32, BF16, F16, I64, I32, I16, I8, U8, BOOL");
  EXPECT_EQ(find_element_type("BF16"), ElementType::bf16);
  EXPECT_EQ(find_element_type("F8_E4M3"), std::nullopt);
  EXPECT_EQ(width(ElementType::boolean), 1);
  EXPECT_FALSE(is_float(ElementType::i64));
}

}  // namespace
}  // namespace optimus
