// KernelTimes: how fast our engine's kernels run on a device in one number format, by size, as a probe measured them
// (engine/probe.h). A type that has them is predicted from them instead of from peaks and curves.
//
// Tables, all optional: what is not there is predicted as for a device that nobody has measured.
//   product, product.add                         operations a second over (rows, inner, outer): y = x Wᵀ, y += x Wᵀ
//   product.input, product.weight                dx = dy W, dW += dyᵀ x
//   attention, attention.backward                operations a second over (length, head_dim), as model/operations.h counts them: causal
//   attention.whole, attention.whole.backward    every position sees all others
//   norm.KIND, norm.KIND.backward                elements a second over elements; likewise
//   activation.NAME, activation.NAME.backward    NAME with ".gated" where a gate multiplies
//   narrow.product, narrow.input, narrow.weight  as product.*, of products in 8 bits whose operands are there (engine/fp8_products.h)
//   cast, cast.both, cast.turned, cast.transpose elements a second: to 8 bits as they lie, both ways, transposed; 8 bits transposed
//   norm.KIND.narrow, activation.NAME.narrow and .narrow.backward: these, straight to 8 bits
//   rope, embedding, embedding.backward, loss, add, bias (a sum over rows), update (of parameters, norm and clearing included)
#pragma once

#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/number_format.h"

namespace optimus {

// Work a second over a grid of sizes. Between points: straight lines where all axes are logarithmic; outside the grid the
// rate of its edge.
struct RateTable {
  std::vector<std::vector<double>> axes;  // one to three, each ascends
  std::vector<double> rates;              // the last axis runs fastest
  bool operator==(const RateTable&) const = default;

  // As many sizes as axes.
  double at(std::span<const double> sizes) const;
};

struct KernelTimes {
  NumberFormat format = NumberFormat::fp32;
  double launch_seconds = 0;  // the host's, for a kernel: nothing takes less
  double step_seconds = 0;    // the host's, for a step, beside its kernels
  std::map<std::string, RateTable, std::less<>> tables;
  bool operator==(const KernelTimes&) const = default;

  // Seconds of `work` at such sizes; below 0 when there is no such table.
  double seconds(std::string_view table, double work, std::initializer_list<double> sizes) const;
};

inline constexpr int kMostKernelTables = 100, kMostTableRates = 100'000;

// Throws UserError that begins with `where`: axes must ascend from above 0, rates must be above 0 and as many as points.
void validate(const KernelTimes& times, const std::string& where);

}  // namespace optimus
