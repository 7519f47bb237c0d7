// Seconds of work on a single device: GEMMs, attention, memory traffic of the other operations, kernel
// launches. Sizes are plain numbers; cost/instruction_cost.h derives them from instructions.
#pragma once

#include "cluster/hardware.h"
#include "cost/constants.h"
#include "cost/software.h"

namespace optimus {

enum class Architecture { ampere, hopper, blackwell, other };
// Derived from the name of the device type. `other`: no published run used this architecture, so only the
// type's own efficiency curves apply.
Architecture architecture_of(const DeviceType& type);

// Number format of GEMM inputs. has_blocks: one scale per block of 16 or 32 elements.
struct GemmFormat {
  NumberFormat format = NumberFormat::bf16;
  bool has_blocks = false;
  bool is_low_precision() const { return format == NumberFormat::fp8 || format == NumberFormat::fp4; }
  bool operator==(const GemmFormat&) const = default;
};

class DeviceCost {
 public:
  // All references must outlive this object. `speed`: speed of this device relative to its type.
  DeviceCost(const DeviceType& type, double speed, const Software& software, const Constants& constants);

  // Seconds of a GEMM [rows, inner] x [inner, columns].
  double gemm_seconds(double rows, double inner, double columns, GemmFormat format) const;
  // Seconds of one kernel that computes `experts` such GEMMs, among which `rows` are divided evenly.
  double grouped_gemm_seconds(double rows, double inner, double columns, double experts,
                              GemmFormat format) const;
  // Seconds of flash attention with this number of floating-point operations and heads of width `head_dim`.
  double flash_seconds(double flops, double head_dim, bool is_backward, NumberFormat format) const;
  // Seconds of the GEMMs of attention that materialises its scores: batched [length, head_dim] x [head_dim,
  // length].
  double score_gemm_seconds(double flops, double length, double head_dim, NumberFormat format) const;
  // Seconds to read or write this number of bytes of device memory.
  // pointwise_traffic_seconds() multiplies the bytes by the traffic constant of the software's kernel style.
  double traffic_seconds(double bytes) const { return bytes / bandwidth_ * constants_.memory_residual; }
  double pointwise_traffic_seconds(double bytes) const { return traffic_seconds(bytes * pointwise_traffic_); }
  double launch_overhead_seconds(double kernels) const {
    return kernels * launch_seconds_ * constants_.host_residual;
  }

  // Measured times of the engine's kernels in this format on this device; nullptr if there are none or the
  // software is not the Optimus engine.
  const KernelTimes* measured_kernels(NumberFormat format) const;
  double speed() const { return speed_; }

  const Constants& constants() const { return constants_; }
  const Software& software() const { return software_; }

 private:
  double wave_efficiency(double rows, double columns) const;
  // peak rate; falls back to the next wider format that the device supports
  double peak_rate(NumberFormat format) const;

  const DeviceType& type_;
  const Software& software_;
  const Constants& constants_;
  Architecture architecture_;
  double speed_, multiprocessors_, gemm_speed_, size_factor_, flash_efficiency_, bandwidth_,
      pointwise_traffic_, launch_seconds_;
};

}  // namespace optimus
