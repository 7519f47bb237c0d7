// The time, in seconds, of work on a single device: GEMMs, attention, memory traffic of all other operations,
// and kernel launches. Sizes are plain numbers, which cost/instruction_cost.h derives from instructions.
#pragma once

#include "cluster/hardware.h"
#include "cost/constants.h"
#include "cost/software.h"

namespace optimus {

enum class Architecture { ampere, hopper, blackwell, other };
// Returns the architecture for the name of a device type. `other` means that no published run used this
// architecture, so only the efficiency curves of the device type apply.
Architecture architecture_of(const DeviceType& type);

// The number format of GEMM inputs. With `has_blocks`, there is one scale per block of 16 or 32 elements.
struct GemmFormat {
  NumberFormat format = NumberFormat::bf16;
  bool has_blocks = false;
  bool is_low_precision() const { return format == NumberFormat::fp8 || format == NumberFormat::fp4; }
  bool operator==(const GemmFormat&) const = default;
};

class DeviceCost {
 public:
  // All references must outlive this object. `speed` is the speed of the device relative to its type.
  DeviceCost(const DeviceType& type, double speed, const Software& software, const Constants& constants);

  // Seconds taken by a GEMM [rows, inner] x [inner, columns].
  double gemm_seconds(double rows, double inner, double columns, GemmFormat format) const;
  // Seconds taken by one kernel that computes `experts` GEMMs, with `rows` divided evenly among them.
  double grouped_gemm_seconds(double rows, double inner, double columns, double experts,
                              GemmFormat format) const;
  // Seconds taken by flash attention with `flops` floating-point operations and heads of width `head_dim`.
  double flash_seconds(double flops, double head_dim, bool is_backward, NumberFormat format) const;
  // Seconds taken by the batched [length, head_dim] x [head_dim, length] GEMMs in attention that materializes
  // its scores.
  double score_gemm_seconds(double flops, double length, double head_dim, NumberFormat format) const;
  // Seconds to read or write `bytes` bytes of device memory. pointwise_traffic_seconds() multiplies the bytes
  // by the traffic constant of the software's kernel style.
  double traffic_seconds(double bytes) const { return bytes / bandwidth_ * constants_.memory_residual; }
  double pointwise_traffic_seconds(double bytes) const { return traffic_seconds(bytes * pointwise_traffic_); }
  double launch_overhead_seconds(double kernels) const {
    return kernels * launch_seconds_ * constants_.host_residual;
  }

  // The measured times of the engine's kernels in this format on this device, or nullptr if there are none or
  // the software is not the Optimus engine.
  const KernelTimes* measured_kernels(NumberFormat format) const;
  double speed() const { return speed_; }

  const Constants& constants() const { return constants_; }
  const Software& software() const { return software_; }

 private:
  double wave_efficiency(double rows, double columns) const;
  // The peak rate in `format` or, if the device does not support it, in a wider format.
  double peak_rate(NumberFormat format) const;

  const DeviceType& type_;
  const Software& software_;
  const Constants& constants_;
  Architecture architecture_;
  double speed_, multiprocessors_, gemm_speed_, size_factor_, flash_efficiency_, bandwidth_,
      pointwise_traffic_, launch_seconds_;
};

}  // namespace optimus
