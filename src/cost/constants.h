// Constants: what the formulas of this folder cannot know and measurements must tell: reached fractions of peaks, latencies,
// overheads. One set serves every plan, model, cluster and software; there is no factor for a single run or table.
//
// Each constant has a prior, from data sheets and common experience, and bounds. bench_fit finds values on published runs,
// held near the priors, and writes them into cost/fitted.inc (docs/cost-model.md says how and how well).
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace optimus {

struct Constants {
  // Products: factor on the device's efficiency curve, and on the size at which it is read.
  double product_ampere = 1, product_hopper = 1, product_blackwell = 0.8;
  double size_ampere = 1, size_hopper = 1, size_blackwell = 1;
  double wave = 0.5;          // loss by a last, partly filled round of tiles: (rounds / whole rounds) ^ this
  double ultra = 1.15;        // speed of B300 and GB300, of Blackwell's
  double fp8_emulated = 0.7;  // block scales on devices that have none in hardware
  double fp8 = 1;  // 8-bit products: what they reach of their peak, of what 16-bit ones do of theirs
  double fp8_blocks = 0.97, fp4 = 0.75;  // of that: with a scale for each block; in 4 bits of their peak
  double fp8_cast = 1;                   // traffic of casting to 8 bits and below, beside the counted one
  double power = 0.4;                    // speed of products ~ (watts / usual watts) ^ power
  // Attention: reached of the bf16 peak.
  double flash_ampere = 0.65, flash_hopper = 0.6, flash_blackwell = 0.5;
  double flash_first = 0.75,
         flash_portable = 0.7;   // of that: the first kernels; on Hopper and later without their instructions
  double flash_backward = 0.75;  // of the forward's
  double flash_head = 24;        // head_dim / (head_dim + this)
  double unaligned = 0.3;        // speed of products of heads whose width is no multiple of 8
  double score_product = 0.7;    // unfused attention: its products, of the curve
  double score_traffic = 1;      // unfused attention: bytes of scores, beside the counted ones
  // Memory.
  double bandwidth = 0.8;                                                 // reached of the memory's
  double fused_traffic = 1.2, compiled_traffic = 1.2, eager_traffic = 2;  // beside the counted bytes
  double loss_traffic = 3;
  double gradient_traffic = 1;  // adding weight gradients to their accumulators
  double optimizer_traffic = 1.2;
  double launch = 20e-6,
         launch_eager = 25e-6;  // seconds of the host for a counted kernel, with what Python does for it
  // Links: factors on the link's efficiency curve, and latencies.
  double domain_speed = 1, network_speed = 1;
  double domain_latency = 1, network_latency = 1;  // factors on the link's
  double crowding = 0.02;                          // loss of network bandwidth with each doubling of nodes
  double tensor_hidden = 0.5;   // part of tensor-parallel communication that software which overlaps it hides
  double interference = 0.15;   // seconds that compute loses for each second of communication beside it
  double slot_seconds = 50e-6;  // host work for each micro-batch and chunk
  double step_seconds = 10e-3;  // host work for each step
  double turn_seconds = 2e-3;   // for each owner of a shard, where they broadcast theirs one after the other
  double straggling = 0.005;    // slowest of many: part of the step's time lost with each doubling of nodes
  // Memory: what a process takes beside tensors, and what the allocator loses.
  double context_bytes = 1.5e9, group_bytes = 0.2e9, reserve = 0.03, live_factor = 1;
  // Mixtures of experts. Stated, not fitted: runs that were measured force even loads, and there are too few kinds of them.
  double expert_imbalance = 1.15;  // tokens of the busiest device, of the mean
  double expert_product = 0.85;    // products of many experts in one kernel, of one product with as many rows
  // What is left when everything else is as above: seconds of products and attention, of traffic through memory, of the host
  // and of links, of the predicted ones. 1, unless a run's own steps have told (simulate/refit.h).
  double compute_residual = 1, memory_residual = 1, host_residual = 1, link_residual = 1;
  double ring_residual = 1;                          // collectives between nodes, beside that
  double embedding_residual = 1, head_residual = 1;  // all that these compute, beside what layers are off by
};

struct ConstantRow {
  std::string_view name;
  double Constants::*member;
  double low, high;
  std::string_view meaning;
  bool is_stated = false;  // no fit moves it
};

// In the order of the struct. At most 60, by agreement with whoever reads the accuracy figures.
std::span<const ConstantRow> constant_rows();

// The fitted ones; and those fitted without one source of runs, for honest figures on it. `source` unknown: all data.
const Constants& fitted_constants();
// Links that were measured are as they are.
inline Constants with_measured_links(Constants constants) {
  constants.domain_speed = constants.domain_latency = 1;
  return constants;
}
Constants constants_without(std::string_view source);
std::vector<std::string_view> left_out_sources();

}  // namespace optimus
