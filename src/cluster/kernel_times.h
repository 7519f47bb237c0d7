// KernelTimes: the speed of the engine's kernels on a device in one number format, as a function of size,
// measured by a probe (engine/probe.h). If a device type has kernel times, predictions use them instead of
// peaks and curves.
//
// All tables are optional. A kernel without a table is predicted as on a device without measurements.
//   product, product.add                operations per second over (rows, inner, outer): y = x Wᵀ, y += x Wᵀ
//   product.input, product.weight       dx = dy W, dW += dyᵀ x
//   attention                           operations per second over (length, head_dim), counted as in
//                                       model/operations.h: causal
//   attention.whole                     not causal: every position attends to all others
//   norm.KIND                           elements per second over elements, as are all following tables
//   activation.NAME                     NAME has the suffix ".gated" if a gate is multiplied
//     These four have a second table with the suffix ".backward".
//   narrow.product, narrow.input, narrow.weight
//                                       as product.*, for fp8 GEMMs whose operands are already in fp8
//                                       (engine/fp8_gemm.h)
//   cast, cast.turned, cast.both        cast to fp8 as stored, transposed, and both at once
//   cast.transpose                      transpose of fp8 elements
//   norm.KIND.narrow, activation.NAME.narrow, activation.NAME.narrow.backward
//                                       as above, with fp8 output
//   rope, embedding, embedding.backward, loss, add, bias (a sum over rows)
//   update                              update of the parameters, including the gradient norm and clearing
//                                       the gradients
#pragma once

#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/number_format.h"

namespace optimus {

// Operations or elements per second over a grid of sizes. Rates are interpolated linearly in log-log space.
// Outside the grid, the rate at the nearest edge applies.
struct RateTable {
  std::vector<std::vector<double>> axes;  // one to three, each in ascending order
  std::vector<double> rates;              // the last axis varies fastest
  bool operator==(const RateTable&) const = default;

  // The rate at `sizes`, which has one element per axis.
  double at(std::span<const double> sizes) const;
};

struct KernelTimes {
  NumberFormat format = NumberFormat::fp32;
  // The host time to launch a kernel, which is a lower bound on the time of every kernel.
  double launch_seconds = 0;
  double step_seconds = 0;  // host time per step in addition to the kernel launches
  std::map<std::string, RateTable, std::less<>> tables;
  bool operator==(const KernelTimes&) const = default;

  // The time in seconds for `amount` operations or elements at these sizes. Negative if there is no such
  // table.
  double seconds(std::string_view table, double amount, std::initializer_list<double> sizes) const;
};

inline constexpr int kMaxKernelTables = 100, kMaxTableRates = 100'000;

// Throws a UserError that starts with `location` unless axes are positive and ascending, rates are positive,
// and there is one rate per grid point.
void validate(const KernelTimes& times, const std::string& location);

}  // namespace optimus
