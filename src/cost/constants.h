// The constants of the cost model: values that its formulas cannot derive and that are fitted to
// measurements, such as attained fractions of peak rates, latencies and overheads. One set serves all plans,
// models, clusters and software; there is no factor for a single run or table.
//
// Each constant has a prior, from data sheets and common experience, and bounds. bench_fit fits the values to
// published runs, regularised towards the priors, and writes them into cost/fitted.inc
// (docs/results/accuracy.md describes the method and its accuracy).
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace optimus {

struct Constants {
  // GEMMs: factors on the device's efficiency curve, and on the size at which the curve is read.
  double gemm_ampere = 1, gemm_hopper = 1, gemm_blackwell = 0.8;
  double size_ampere = 1, size_hopper = 1, size_blackwell = 1;
  double wave = 0.5;  // loss from a partially filled last wave of tiles: (waves / full waves) ^ this
  double blackwell_ultra = 1.15;  // speed of B300 and GB300 relative to Blackwell
  double fp8_emulated = 0.7;      // block scales on devices without hardware support
  double fp8 = 1;  // fp8 GEMMs: attained fraction of their peak, relative to that of 16-bit GEMMs
  double fp8_blocks = 0.97, fp4 = 0.75;  // relative to that: with a scale per block; in fp4
  double fp8_cast = 1;  // memory traffic of casts to 8 bits and below, relative to the counted bytes
  double power = 0.4;   // speed of GEMMs ~ (watts / usual watts) ^ power
  // Attention: attained fraction of the bf16 peak.
  double flash_ampere = 0.65, flash_hopper = 0.6, flash_blackwell = 0.5;
  double flash_v1 = 0.75,
         // relative to that: the first kernels; on Hopper and later without their special instructions
      flash_portable = 0.7;
  double flash_backward = 0.75;  // relative to the forward
  double flash_head = 24;        // head_dim / (head_dim + this)
  double unaligned = 0.3;        // speed of GEMMs of heads whose width is not a multiple of 8
  double score_gemm = 0.7;       // unfused attention: speed of its GEMMs relative to the efficiency curve
  double score_traffic = 1;      // unfused attention: memory traffic of scores relative to the counted bytes
  // Memory.
  double bandwidth = 0.8;  // attained fraction of the peak memory bandwidth
  double fused_traffic = 1.2, compiled_traffic = 1.2, eager_traffic = 2;  // relative to the counted bytes
  double loss_traffic = 3;
  double gradient_traffic = 1;  // adding weight gradients to their accumulators
  double optimizer_traffic = 1.2;
  double launch = 20e-6,
         launch_eager = 25e-6;  // seconds of host time per counted kernel, including Python's overhead
  // Links: factors on the link's efficiency curve, and latencies.
  double domain_speed = 1, network_speed = 1;
  double domain_latency = 1, network_latency = 1;  // factors on the link's latency
  double network_contention = 0.02;                // loss of network bandwidth per doubling of nodes
  double tensor_hidden = 0.5;   // hidden part of tensor-parallel communication, for software that overlaps it
  double interference = 0.15;   // seconds that compute loses per second of concurrent communication
  double slot_seconds = 50e-6;  // host time per micro-batch and chunk
  double step_seconds = 10e-3;  // host time per step
  double broadcast_turn_seconds =
      2e-3;  // per owner of a shard, if owners broadcast their shards one after the other
  double straggler_loss = 0.005;  // stragglers: part of the step time lost per doubling of nodes
  // Memory that a process needs in addition to tensors, and loss in the allocator.
  double context_bytes = 1.5e9, group_bytes = 0.2e9, reserve = 0.03, live_factor = 1;
  // MoE models. Stated, not fitted: measured runs force even loads, and there are too few different runs.
  double expert_imbalance = 1.15;  // tokens of the busiest device relative to the mean
  double expert_gemm = 0.85;       // speed of a grouped GEMM relative to one GEMM with equally many rows
  // Residual factors on the predicted seconds: GEMMs and attention, memory traffic, host, links. 1 unless
  // fitted to a run's own steps (simulate/refit.h).
  double compute_residual = 1, memory_residual = 1, host_residual = 1, link_residual = 1;
  double ring_residual = 1;  // collectives between nodes, in addition to link_residual
  // all compute of these blocks, in addition to the residual of layers
  double embedding_residual = 1, head_residual = 1;
};

struct ConstantRow {
  std::string_view name;
  double Constants::*member;
  double min_value, max_value;
  std::string_view meaning;
  bool is_stated = false;  // excluded from fits
};

// In the order of the struct. At most 60, so that the accuracy figures stay meaningful.
std::span<const ConstantRow> constant_rows();

// The fitted constants.
const Constants& fitted_constants();
// Measured links are used as measured, without a factor.
inline Constants with_measured_links(Constants constants) {
  constants.domain_speed = constants.domain_latency = 1;
  return constants;
}
Constants constants_fitted_without(std::string_view source);
std::vector<std::string_view> left_out_sources();

}  // namespace optimus
