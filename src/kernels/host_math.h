// Arithmetic on single elements for the loops of HostKernels. Loads and stores element types and computes
// exponentials.
//
// Everything here is branch-free, so that g++ vectorizes loops over it (`#pragma omp simd`). Calls to the
// math library, or to functions that are not inlined, would prevent that. Doubles do use the math library,
// because fp64 is only for tests.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace optimus {

// The type used for arithmetic on T and for statistics of T.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

inline double load(double value) { return value; }
inline float load(float value) { return value; }
inline float load(c10::Half value) { return static_cast<float>(value); }
inline float load(c10::BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.x) << 16);
}

inline void store(double& to, double value) { to = value; }
inline void store(float& to, float value) { to = value; }
#ifdef __aarch64__
inline void store(c10::Half& to, float value) { to = c10::Half(static_cast<float16_t>(value)); }
#else
inline void store(c10::Half& to, float value) { to = c10::Half(value); }
#endif
// Rounds to nearest, ties to even, with integer arithmetic only. NaN is handled separately, because it could
// round to infinity.
inline void store(c10::BFloat16& to, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  to.x = static_cast<std::uint16_t>(value != value ? 0x7fc0U : rounded);
}

[[gnu::always_inline]] inline double exponential(double x) { return std::exp(x); }

// Maps x to an integer with the same order, and back. The maximum of two integers takes one instruction, but
// comparisons of floats with correct NaN handling take several. std::fmax on 16-bit numbers makes g++ 12
// fail.
template <typename Number>
using OrderOf = std::conditional_t<std::is_same_v<Number, double>, std::int64_t, std::int32_t>;

template <typename Number>
OrderOf<Number> order_of(Number x) {
  const auto bits = std::bit_cast<OrderOf<Number>>(x);
  return bits ^ ((bits >> (8 * sizeof(Number) - 1)) & std::numeric_limits<OrderOf<Number>>::max());
}

template <typename Number>
Number from_order(OrderOf<Number> order) {
  return std::bit_cast<Number>(order_of(std::bit_cast<Number>(order)));
}

// e^x within 2 ulp: 2^n * e^r with |r| <= ln 2 / 2. Below -87.3 the result is 0 instead of a denormal number.
// Above 88.3 it is 2e38, which is equivalent to infinity in all our formulas. NaN stays NaN.
// Both limits are tested by comparing bits, because floating-point comparisons with correct NaN handling take
// many instructions.
[[gnu::always_inline]] inline float exponential(float x) {
  constexpr auto kLowest = std::bit_cast<std::uint32_t>(-87.3F),
                 kHighest = std::bit_cast<std::uint32_t>(88.3F);
  constexpr std::uint32_t kInfinity = 0x7f800000U, kMinusInfinity = 0xff800000U;
  constexpr float kRounding = 0x1.8p23F;  // adding it leaves the nearest integer in the lowest bits
  const float shifted = x * 1.44269504F + kRounding;
  const float multiple = shifted - kRounding;
  const float remainder =
      (x - multiple * 0.693145752F) - multiple * 1.42860677e-6F;  // ln 2 split into two parts
  const float remainder_squared = remainder * remainder;  // shorter dependency chain than Horner's method
  const float high_terms =
      remainder_squared * (0.00138144649F * remainder_squared + (0.00836878084F * remainder + 0.0416683927F));
  const float power =
      (remainder + 1.0F) + remainder_squared * ((0.166665196F * remainder + 0.49999994F) + high_terms);
  const float scale = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + 0x3f800000U);
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const float capped = bits - kHighest <= kInfinity - kHighest ? 0x1.4p127F : power * scale;
  return bits - kLowest <= kMinusInfinity - kLowest ? 0.0F : capped;
}

// The density and the cumulative probability of the normal distribution at x.
template <typename Number>
struct Normal {
  Number density, cumulative;
};

[[gnu::always_inline]] inline Normal<double> normal_distribution(double x) {
  return {0.39894228040143267794 * std::exp(-0.5 * x * x), 0.5 * std::erfc(-0.70710678118654752440 * x)};
}

// The tail is density * (a polynomial of t = 1 / (1 + z / 2), z = |x| / sqrt 2), fitted to a relative error
// of 5e-8.
[[gnu::always_inline]] inline Normal<float> normal_distribution(float x) {
  const float gaussian = exponential(-0.5F * x * x);
  const float t = 1.0F / (1.0F + 0.353553391F * std::abs(x));
  float series = -0.05938638F;
  series = series * t + 0.286123574F;
  series = series * t + -0.49040556F;
  series = series * t + 0.28173238F;
  series = series * t + -0.0291479193F;
  series = series * t + 0.203752279F;
  series = series * t + 0.242835179F;
  series = series * t + 0.282412082F;
  series = series * t + 0.282084346F;
  const float tail = 0.5F * gaussian * (series * t);
  return {0.398942280F * gaussian, x < 0.0F ? tail : 1.0F - tail};
}

}  // namespace optimus
