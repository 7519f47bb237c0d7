// Seconds of what one device does alone: products, attention, traffic between products, updates. Sizes come in as plain
// numbers; which of them an instruction has is decided in cost/instruction_cost.h.
#pragma once

#include "cluster/hardware.h"
#include "cost/constants.h"
#include "cost/software.h"

namespace optimus {

enum class Architecture { ampere, hopper, blackwell, other };
// By the type's name; `other` for what no published run was fitted on: its own curves then stand alone.
Architecture architecture_of(const DeviceType& type);

// In what products are computed. blocks: a scale for each block of 16 or 32 elements.
struct ProductFormat {
  NumberFormat format = NumberFormat::bf16;
  bool has_blocks = false;
  bool is_narrow() const { return format == NumberFormat::fp8 || format == NumberFormat::fp4; }
  bool operator==(const ProductFormat&) const = default;
};

class DeviceCost {
 public:
  // All must outlive this object. speed: of this device, of its type's.
  DeviceCost(const DeviceType& type, double speed, const Software& software, const Constants& constants);

  // [rows, inner] x [inner, columns].
  double product(double rows, double inner, double columns, ProductFormat format) const;
  // `experts` such matrices, each with its part of the rows, in one kernel.
  double grouped_product(double rows, double inner, double columns, double experts,
                         ProductFormat format) const;
  // Flash attention of that many operations; heads of `head_dim`.
  double flash(double flops, double head_dim, bool is_backward, NumberFormat format) const;
  // The products of attention that writes its scores: many of [length, head_dim] x [head_dim, length] side by side.
  double scores(double flops, double length, double head_dim, NumberFormat format) const;
  // Bytes through the device's memory.
  double traffic(double bytes) const { return bytes / bandwidth_ * constants_.memory_residual; }
  double between_products(double bytes) const { return traffic(bytes * pointwise_); }
  double launches(double kernels) const { return kernels * launch_ * constants_.host_residual; }

  // What was measured of our kernels in that format on this device; none: not measured, or another software's kernels.
  const KernelTimes* measured(NumberFormat format) const;
  double speed() const { return speed_; }

  const Constants& constants() const { return constants_; }
  const Software& software() const { return software_; }

 private:
  double filled_rounds(double rows, double columns) const;
  double peak(NumberFormat format) const;  // the nearest wider format where the device has none

  const DeviceType& type_;
  const Software& software_;
  const Constants& constants_;
  Architecture architecture_;
  double speed_, multiprocessors_, product_, size_, flash_, bandwidth_, pointwise_, launch_;
};

}  // namespace optimus
