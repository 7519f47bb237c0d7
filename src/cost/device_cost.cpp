// See device_cost.h.
#include "cost/device_cost.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace optimus {
namespace {

// The nominal power of the architecture's devices in watts, or 0 if there is no single value. A device with a
// lower power limit computes more slowly.
double nominal_watts(Architecture architecture) {
  switch (architecture) {
    case Architecture::ampere:
      return 400;
    case Architecture::hopper:
      return 700;
    case Architecture::blackwell:  // nominal power depends on the variant
    case Architecture::other:
      return 0;
  }
  return 0;
}

// The number of multiprocessors in the architecture's devices, or 0 if waves of tiles are not modeled.
double multiprocessors_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::ampere:
      return 108;
    case Architecture::hopper:
      return 132;
    case Architecture::blackwell:
      return 148;
    case Architecture::other:
      return 0;
  }
  return 0;
}

// Bytes per element of GEMM operands in memory. 8-bit and 4-bit operands are cast from 16 bits, and the cast
// is counted separately.
double width_of(NumberFormat format) {
  switch (format) {
    case NumberFormat::fp64:
      return 8;
    case NumberFormat::fp32:
    case NumberFormat::tf32:
      return 4;
    case NumberFormat::bf16:
    case NumberFormat::fp16:
    case NumberFormat::fp8:
    case NumberFormat::fp4:
      return 2;
  }
  return 2;
}

// Seconds of host time per kernel launch from compiled code. Published runs cannot determine this value, so
// it was measured in runs of the Optimus engine on one device.
constexpr double kNativeLaunch = 4e-6;

}  // namespace

Architecture architecture_of(const DeviceType& type) {
  const std::string_view name = type.name;
  for (const std::string_view prefix : {"v100", "a100", "a800"})
    if (starts_with(name, prefix)) return Architecture::ampere;
  for (const std::string_view prefix : {"h100", "h200", "h800", "gh200"})
    if (starts_with(name, prefix)) return Architecture::hopper;
  for (const std::string_view prefix : {"b200", "b300", "gb200", "gb300"})
    if (starts_with(name, prefix)) return Architecture::blackwell;
  return Architecture::other;
}

DeviceCost::DeviceCost(const DeviceType& type, double speed, const Software& software,
                       const Constants& constants)
    : type_(type),
      software_(software),
      constants_(constants),
      architecture_(architecture_of(type)),
      speed_(speed),
      multiprocessors_(multiprocessors_of(architecture_)),
      gemm_speed_(1),
      size_factor_(1),
      flash_efficiency_(0.5),
      bandwidth_(type.memory_bytes_per_second * constants.bandwidth * speed) {
  const Constants& c = constants;
  switch (architecture_) {
    case Architecture::ampere:
      gemm_speed_ = c.gemm_ampere, size_factor_ = c.size_ampere, flash_efficiency_ = c.flash_ampere;
      break;
    case Architecture::hopper:
      gemm_speed_ = c.gemm_hopper, size_factor_ = c.size_hopper, flash_efficiency_ = c.flash_hopper;
      break;
    case Architecture::blackwell:
      gemm_speed_ = c.gemm_blackwell, size_factor_ = c.size_blackwell, flash_efficiency_ = c.flash_blackwell;
      if (ends_with(type.name, "b300"))
        gemm_speed_ *= c.blackwell_ultra, flash_efficiency_ *= c.blackwell_ultra;
      break;
    case Architecture::other:
      break;
  }
  if (const double nominal = nominal_watts(architecture_); nominal > 0 && type.watts > 0) {
    const double factor = std::pow(type.watts / nominal, c.power);
    gemm_speed_ *= factor, flash_efficiency_ *= factor;
  }
  switch (software.kernels) {
    case KernelStyle::eager:
      pointwise_traffic_ = c.eager_traffic, launch_seconds_ = c.launch_eager;
      break;
    case KernelStyle::fused:
      pointwise_traffic_ = c.fused_traffic, launch_seconds_ = c.launch;
      break;
    case KernelStyle::compiled:
      pointwise_traffic_ = c.compiled_traffic, launch_seconds_ = c.launch;
      break;
  }
  if (!software.launches_from_python) launch_seconds_ = kNativeLaunch;
}

const KernelTimes* DeviceCost::measured_kernels(NumberFormat format) const {
  if (!software_.runs_programs) return nullptr;
  const auto find = [&](NumberFormat target) -> const KernelTimes* {
    for (const KernelTimes& times : type_.kernels)
      if (times.format == target) return &times;
    return nullptr;
  };
  if (const KernelTimes* times = find(format)) return times;
  // The Optimus engine never replaces fp32 with TF32. bf16 and fp16 have the same size, so bf16 times are
  // used for both.
  if (format == NumberFormat::tf32) return find(NumberFormat::fp32);
  const bool is_half = format == NumberFormat::fp16 || format == NumberFormat::bf16;
  if (!is_half) return nullptr;
  // Measurements in fp8 include tables for bf16, because some GEMMs of an fp8 run stay in 16 bits.
  const KernelTimes* const half = find(NumberFormat::bf16);
  return half != nullptr ? half : find(NumberFormat::fp8);
}

// Returns (waves / ceil(waves)) ^ Constants::wave. Tiles of 128 x 256 elements are computed in parallel, one
// per multiprocessor, and many multiprocessors may be idle in the last wave of tiles.
double DeviceCost::wave_efficiency(double rows, double columns) const {
  if (multiprocessors_ == 0) return 1;
  const auto wave_fraction = [&](double height, double width) {
    const double tiles = std::ceil(rows / height) * std::ceil(columns / width) / multiprocessors_;
    // The efficiency curve already includes the idle part of a single wave.
    return tiles < 1 ? 1 : tiles / std::ceil(tiles);
  };
  return std::pow(std::max(wave_fraction(128, 256), wave_fraction(256, 128)), constants_.wave);
}

double DeviceCost::peak_rate(NumberFormat format) const {
  if (const double rate = peak_flops(type_, format); rate > 0) return rate * speed_;
  if (const double half = std::max(type_.peak.bf16, type_.peak.fp16);
      half > 0 && format != NumberFormat::fp64 && format != NumberFormat::fp32 &&
      format != NumberFormat::tf32)
    return half * speed_;
  return type_.peak.fp32 * speed_;
}

double DeviceCost::gemm_seconds(double rows, double inner, double columns, GemmFormat format) const {
  const double multiply_adds = rows * inner * columns;
  if (multiply_adds <= 0) return 0;
  const double fastest_rate = peak_rate(format.format), bf16_peak = peak_rate(NumberFormat::bf16);
  // A faster format needs a larger GEMM to keep the device busy for the same time. Therefore the bf16 curve
  // is read at the size of a bf16 GEMM that takes the same time at peak rate.
  const double edge = std::cbrt(multiply_adds * bf16_peak / fastest_rate) * size_factor_;
  double efficiency = type_.gemm_efficiency.at(edge) * gemm_speed_;
  if (format.is_low_precision()) efficiency *= constants_.fp8;
  if (format.format == NumberFormat::fp8 && format.has_blocks) efficiency *= constants_.fp8_blocks;
  if (format.has_blocks && architecture_ != Architecture::blackwell) efficiency *= constants_.fp8_emulated;
  if (format.format == NumberFormat::fp4) efficiency *= constants_.fp4;
  efficiency *= wave_efficiency(rows, columns);
  const double bytes = width_of(format.format) * (rows * inner + inner * columns + rows * columns);
  return std::max(
      2 * multiply_adds / (fastest_rate * std::min(efficiency, 1.0)) * constants_.compute_residual,
      traffic_seconds(bytes));
}

// Modeled as one GEMM with all rows, except that the rows of each expert are padded to whole tiles, the
// weights of all experts are read, and the speed is scaled by Constants::expert_gemm.
double DeviceCost::grouped_gemm_seconds(double rows, double inner, double columns, double experts,
                                        GemmFormat format) const {
  if (rows <= 0) return 0;
  constexpr double kTile = 128;
  const double rows_per_expert = rows / experts,
               padded = std::ceil(rows_per_expert / kTile) * kTile * experts;
  const double bytes = width_of(format.format) * (rows * (inner + columns) + experts * inner * columns);
  return std::max(gemm_seconds(padded, inner, columns, format) / constants_.expert_gemm,
                  traffic_seconds(bytes));
}

double DeviceCost::flash_seconds(double flops, double head_dim, bool is_backward, NumberFormat format) const {
  double efficiency = flash_efficiency_ * head_dim / (head_dim + constants_.flash_head) *
                      (is_backward ? constants_.flash_backward : 1);
  const AttentionKernel kernel = software_.attention;
  if (kernel == AttentionKernel::first) efficiency *= constants_.flash_v1;
  if (kernel != AttentionKernel::native && architecture_ != Architecture::ampere)
    efficiency *= constants_.flash_portable;
  return flops / (peak_rate(format) * efficiency) * constants_.compute_residual;
}

double DeviceCost::score_gemm_seconds(double flops, double length, double head_dim,
                                      NumberFormat format) const {
  const double edge = std::cbrt(length * length * head_dim) * size_factor_;
  const double efficiency = type_.gemm_efficiency.at(edge) * gemm_speed_ * constants_.score_gemm *
                            (static_cast<std::int64_t>(head_dim) % 8 == 0 ? 1 : constants_.unaligned);
  return flops / (peak_rate(format) * std::min(efficiency, 1.0)) * constants_.compute_residual;
}

}  // namespace optimus
