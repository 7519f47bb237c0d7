// For programs that check kernels on a GPU, where GoogleTest is not available: random tensors on the device,
// the tolerance of each element type, and a table of the largest differences.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace optimus::test {

inline const std::vector<at::ScalarType> kTypes = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

inline at::ScalarType wide_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

inline at::Tensor random_tensor(std::vector<std::int64_t> sizes, at::ScalarType type) {
  return at::randn(sizes, at::TensorOptions(at::kDouble).device(at::kCUDA)).to(type);
}
// Rows as columns of a wider buffer, starting at element `shift`: 0, contiguous; 8, gaps of whole packs; 3,
// unaligned rows.
inline at::Tensor random_rows(std::int64_t rows, std::int64_t width, at::ScalarType type,
                              std::int64_t shift) {
  return random_tensor({rows, width + 2 * shift}, type).narrow(1, shift, width);
}
inline at::Tensor in_double(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(at::kDouble, false, true).contiguous() : tensor;
}

// Results of the element type are rounded once at the end, from arithmetic in the wider type: half a unit in
// the last place (2^-9 for bf16 with 8 significant bits, 2^-12 for fp16 with 11), doubled for a tie that
// falls the other way. fp32: sums of several hundred terms of 2^-24 each and an exponential of 2 units.
inline double tolerance(at::ScalarType type) {
  if (type == at::kDouble) return 1e-13;
  if (type == at::kFloat) return 2e-6;
  return type == at::kBFloat16 ? std::ldexp(1, -8) : std::ldexp(1, -11);
}
// Accumulators and statistics are never rounded to the element type.
inline double wide_tolerance(at::ScalarType type) { return type == at::kDouble ? 1e-13 : 3e-6; }

// The largest difference of each kernel and type, relative to the largest value.
class Differences {
 public:
  void compare(const std::string& kernel, at::ScalarType type, const at::Tensor& got,
               const at::Tensor& expected, double limit) {
    if (got.numel() == 0) return;
    const at::Tensor a = got.to(at::kDouble), b = expected.to(at::kDouble);
    const double largest = b.abs().max().item<double>();
    const double error = (a - b).abs().max().item<double>() / (largest > 0 ? largest : 1);
    double& worst = worst_[kernel][type];
    worst = std::isnan(error) ? error : std::max(worst, error);
    require(kernel, error <= limit,
            fmt::format("{} {}: error {:.3g} exceeds {:.3g} (rows {}, width {})", kernel, c10::toString(type),
                        error, limit, got.size(0), got.size(-1)));
  }
  void require(const std::string& kernel, bool is_true, const std::string& what) {
    worst_[kernel];
    if (is_true) return;
    failed_[kernel] += 1;
    if (failed_[kernel] <= 5) fmt::print(stderr, "FAIL {}\n", what);
  }
  // Prints one line per kernel. Returns whether all checks passed.
  bool print() const {
    for (const auto& [kernel, errors] : worst_) {
      fmt::print("{:<24}", kernel);
      for (const auto& [type, error] : errors) fmt::print("  {} {:.1e}", c10::toString(type), error);
      fmt::print("  {}\n", failed_.contains(kernel) ? "FAIL" : "ok");
    }
    return failed_.empty();
  }

 private:
  std::map<std::string, std::map<at::ScalarType, double>> worst_;
  std::map<std::string, int> failed_;
};

}  // namespace optimus::test
