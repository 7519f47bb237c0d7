// The constants of the cost model: values that its formulas cannot derive, such as attained fractions of peak
// rates, latencies and overheads. They are fitted to measurements. One set of constants serves all plans,
// models, clusters and software, and no factor is specific to a single run.
//
// Each constant has bounds and a prior from data sheets and common experience. bench_fit fits the values to
// published runs, regularized towards the priors, and writes them to cost/fitted.inc.
// docs/results/accuracy.md describes the method and its accuracy.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace optimus {

struct Constants {
  // GEMMs: factors on the attained fraction of the peak rate and on the GEMM size at which the efficiency
  // curve is read.
  double gemm_ampere = 1, gemm_hopper = 1, gemm_blackwell = 0.8;
  double size_ampere = 1, size_hopper = 1, size_blackwell = 1;
  // A partially filled last wave of tiles multiplies the GEMM speed by (waves / ceil(waves)) ^ wave.
  double wave = 0.5;
  double blackwell_ultra = 1.15;  // speed of B300 and GB300 relative to Blackwell
  double fp8_emulated = 0.7;      // speed with block scales on devices without hardware support for them
  double fp8 = 1;                 // fp8 GEMMs: attained fraction of the fp8 peak, relative to 16-bit GEMMs
  double fp8_blocks = 0.97, fp4 = 0.75;  // fp8 with a scale per block, and fp4: speed relative to fp8
  double fp8_cast = 1;  // memory traffic of casts to fp8 and fp4, relative to the counted bytes
  double power = 0.4;   // speed of GEMMs and attention ~ (power limit / nominal power) ^ power
  // Flash attention: attained fraction of the peak rate in the number format of attention.
  double flash_ampere = 0.65, flash_hopper = 0.6, flash_blackwell = 0.5;
  // The speed of FlashAttention 1, and of kernels that do not use the special instructions of Hopper and
  // later devices, relative to the fractions above.
  double flash_v1 = 0.75, flash_portable = 0.7;
  double flash_backward = 0.75;  // speed relative to the forward pass
  double flash_head = 24;        // speed is proportional to head_dim / (head_dim + flash_head)
  // Unfused attention: GEMM speed if head_dim is not a multiple of 8, relative to aligned heads.
  double unaligned = 0.3;
  double score_gemm = 0.7;   // unfused attention: GEMM speed relative to the efficiency curve
  double score_traffic = 1;  // unfused attention: traffic of scores relative to the counted bytes
  // Memory bandwidth and memory traffic.
  double bandwidth = 0.8;  // attained fraction of the peak memory bandwidth
  // memory traffic between GEMMs by kernel style, relative to the counted bytes
  double fused_traffic = 1.2, compiled_traffic = 1.2, eager_traffic = 2;
  double loss_traffic = 3;
  double gradient_traffic = 1;  // memory traffic of accumulating weight gradients
  double optimizer_traffic = 1.2;
  // Seconds of host time per counted kernel, including Python overhead.
  double launch = 20e-6, launch_eager = 25e-6;
  // Links: factors on the attained fraction of the peak bandwidth, followed by factors on the latency.
  double domain_speed = 1, network_speed = 1;
  double domain_latency = 1, network_latency = 1;  // factors on the link's latency
  double network_contention = 0.02;                // fraction of network bandwidth lost per doubling of nodes
  // The hidden fraction of tensor-parallel communication in software that overlaps it.
  double tensor_hidden = 0.5;
  double interference = 0.15;   // seconds that compute loses per second of concurrent communication
  double slot_seconds = 50e-6;  // seconds of host time per micro-batch and chunk
  double step_seconds = 10e-3;  // seconds of host time per step
  // Seconds per broadcast of a shard, for software in which the owners of shards broadcast one after the
  // other.
  double broadcast_turn_seconds = 2e-3;
  double straggler_loss = 0.005;  // fraction of the step time lost to stragglers per doubling of nodes
  // In this order: bytes that a process needs in addition to tensors, bytes per communicator, the fraction of
  // activation memory that the allocator reserves but does not use, and the size of temporary tensors
  // relative to the counted bytes.
  double context_bytes = 1.5e9, group_bytes = 0.2e9, reserve = 0.03, live_factor = 1;
  // MoE models. These constants are set by hand, because published runs force even loads and there are too
  // few different runs for a fit.
  double expert_imbalance = 1.15;  // tokens on the busiest device, relative to the mean
  double expert_gemm = 0.85;  // speed of a grouped GEMM, relative to one GEMM with the same number of rows
  // Residual factors on the predicted seconds of GEMMs and attention, of memory traffic, of the host, and of
  // links. They are 1 unless they are fitted to the steps of a user's own run (simulate/refit.h).
  double compute_residual = 1, memory_residual = 1, host_residual = 1, link_residual = 1;
  double ring_residual = 1;  // collectives between nodes, multiplied by link_residual
  // Factors on all compute of the embedding and of the head, on top of the other residuals.
  double embedding_residual = 1, head_residual = 1;
};

struct ConstantRow {
  std::string_view name;
  double Constants::*member;
  double min_value, max_value;
  std::string_view meaning;
  bool is_stated = false;  // set by hand and excluded from fits
};

// Returns one row per constant, in the order of the members of Constants. There are at most 60 constants, so
// that the reported accuracy remains meaningful.
std::span<const ConstantRow> constant_rows();

// The constants that are fitted on all published runs.
const Constants& fitted_constants();
// Returns the constants for clusters with measured links, to which the fitted factors on domain links do not
// apply.
inline Constants with_measured_links(Constants constants) {
  constants.domain_speed = constants.domain_latency = 1;
  return constants;
}
Constants constants_fitted_without(std::string_view source);
std::vector<std::string_view> left_out_sources();

}  // namespace optimus
