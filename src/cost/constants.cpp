// Implements constants.h. The table lists bounds and meaning of each constant; fitted.inc has the values.
#include "cost/constants.h"

#include <array>
#include <cstddef>

namespace optimus {
namespace {

using C = Constants;

constexpr ConstantRow kRows[] = {
    {"product.ampere", &C::gemm_ampere, 0.6, 1.25,
     "GEMM speed on Ampere and Volta, relative to their curves"},
    {"product.hopper", &C::gemm_hopper, 0.6, 1.4, "GEMM speed on Hopper, relative to its curve"},
    {"product.blackwell", &C::gemm_blackwell, 0.6, 1.4, "GEMM speed on Blackwell, relative to its curve"},
    {"size.ampere", &C::size_ampere, 0.3, 3, "factor on the size at which Ampere's curve is read"},
    {"size.hopper", &C::size_hopper, 0.3, 3, "factor on the size at which Hopper's curve is read"},
    {"size.blackwell", &C::size_blackwell, 0.3, 3, "factor on the size at which Blackwell's curve is read"},
    {"wave", &C::wave, 0.02, 1.2, "loss from a partially filled last wave of tiles, exponent"},
    {"ultra", &C::blackwell_ultra, 0.9, 1.5, "speed of Blackwell Ultra, relative to Blackwell"},
    {"fp8.emulated", &C::fp8_emulated, 0.3, 1, "block scales without hardware support, relative speed"},
    {"fp8", &C::fp8, 0.4, 1.5, "fp8 GEMMs, relative to the curve on the fp8 peak"},
    {"fp8.blocks", &C::fp8_blocks, 0.4, 1.3, "fp8 GEMMs with a scale per block, relative to fp8"},
    {"fp4", &C::fp4, 0.2, 1.3, "fp4 on its peak, relative to fp8 on its peak"},
    {"fp8.cast", &C::fp8_cast, 0.1, 6, "memory traffic of casts, relative to the counted bytes"},
    {"power", &C::power, 0.05, 1.2, "GEMM speed as a function of power, exponent"},
    {"flash.ampere", &C::flash_ampere, 0.3, 1, "flash attention on Ampere, relative to the peak"},
    {"flash.hopper", &C::flash_hopper, 0.2, 1, "flash attention on Hopper, relative to the peak"},
    {"flash.blackwell", &C::flash_blackwell, 0.2, 1, "flash attention on Blackwell, relative to the peak"},
    {"flash.first", &C::flash_v1, 0.3, 1, "FlashAttention 1, relative to flash attention"},
    {"flash.portable", &C::flash_portable, 0.3, 1,
     "flash attention without Hopper's instructions on Hopper, relative to that with them"},
    {"flash.backward", &C::flash_backward, 0.4, 1.2, "backward of flash attention, relative to the forward"},
    {"flash.head", &C::flash_head, 2, 120, "speed of flash attention: head_dim / (head_dim + this)"},
    {"unaligned", &C::unaligned, 0.05, 1,
     "speed of unfused attention if the head width is not a multiple of 8, relative to aligned"},
    {"score.product", &C::score_gemm, 0.2, 1.5, "GEMMs of unfused attention, relative to the curve"},
    {"score.traffic", &C::score_traffic, 0.3, 3,
     "traffic of unfused attention, relative to the counted bytes"},
    {"bandwidth", &C::bandwidth, 0.5, 0.95, "attained fraction of the memory bandwidth"},
    {"traffic.fused", &C::fused_traffic, 0.5, 4,
     "traffic between GEMMs, hand-fused, relative to the counted bytes"},
    {"traffic.compiled", &C::compiled_traffic, 0.5, 4,
     "traffic between GEMMs, compiled, relative to the counted bytes"},
    {"traffic.eager", &C::eager_traffic, 0.5, 6,
     "traffic between GEMMs, one kernel per operation, relative to the counted bytes"},
    {"traffic.loss", &C::loss_traffic, 0.5, 12, "traffic of the loss, relative to the counted bytes"},
    {"traffic.gradient", &C::gradient_traffic, 0.2, 4,
     "traffic of accumulating weight gradients, relative to the counted bytes"},
    {"traffic.optimizer", &C::optimizer_traffic, 0.4, 5,
     "traffic of the optimizer update, relative to the counted bytes"},
    {"launch", &C::launch, 2e-6, 100e-6, "seconds of host time per kernel"},
    {"launch.eager", &C::launch_eager, 2e-6, 150e-6,
     "seconds of host time per kernel, one kernel per operation"},
    {"domain.speed", &C::domain_speed, 0.3, 1.1, "speed of intra-domain links, relative to their curves"},
    {"network.speed", &C::network_speed, 0.2, 1.1, "speed of network links, relative to their curves"},
    {"domain.latency", &C::domain_latency, 0.2, 8,
     "latency of intra-domain links, relative to the specified one"},
    {"network.latency", &C::network_latency, 0.2, 20,
     "latency of network links, relative to the specified one"},
    {"network.crowding", &C::network_contention, 0.0005, 0.5,
     "loss of network bandwidth per doubling of nodes"},
    {"tensor.hidden", &C::tensor_hidden, 0.05, 0.98,
     "hidden part of overlapped tensor-parallel communication"},
    {"interference", &C::interference, 0.01, 0.8,
     "seconds that compute loses per second of concurrent communication"},
    {"host.slot", &C::slot_seconds, 1e-6, 5e-3, "seconds of host time per micro-batch and chunk"},
    {"host.step", &C::step_seconds, 1e-3, 0.3, "seconds of host time per step"},
    {"shard.turn", &C::broadcast_turn_seconds, 1e-4, 20e-3, "seconds per owner that broadcasts its shard"},
    {"straggling", &C::straggler_loss, 0.0003, 0.03,
     "part of the step lost to stragglers per doubling of nodes"},
    {"memory.context", &C::context_bytes, 0.3e9, 4e9, "bytes of a process in addition to its tensors"},
    {"memory.group", &C::group_bytes, 0.02e9, 1e9, "bytes per communicator"},
    {"memory.reserve", &C::reserve, 0.001, 0.3, "fraction of memory that the allocator reserves without use"},
    {"memory.live", &C::live_factor, 0.6, 1.6, "temporary tensors, relative to the counted ones"},
    // Constants that are stated instead of fitted come last.
    {"expert.imbalance", &C::expert_imbalance, 1, 4, "tokens of the busiest MoE device, relative to the mean",
     true},
    {"expert.product", &C::expert_gemm, 0.2, 1.2, "grouped GEMMs, relative to one GEMM of the same size",
     true},
    {"residual.compute", &C::compute_residual, 0.02, 50,
     "seconds of GEMMs and attention, relative to the predicted ones", true},
    {"residual.memory", &C::memory_residual, 0.02, 50,
     "seconds of memory traffic, relative to the predicted ones", true},
    {"residual.host", &C::host_residual, 0.001, 50, "seconds of host time, relative to the predicted ones",
     true},
    {"residual.links", &C::link_residual, 0.02, 50,
     "seconds on links between devices, relative to the predicted ones", true},
    {"residual.rings", &C::ring_residual, 0.02, 50,
     "collectives between nodes, in addition to residual.links", true},
    {"residual.embedding", &C::embedding_residual, 0.02, 50,
     "factor on the compute time of the embedding, on top of the other residuals", true},
    {"residual.head", &C::head_residual, 0.02, 50,
     "factor on the compute time of the head, on top of the other residuals", true},
};
constexpr std::size_t kNumConstants = std::size(kRows);
static_assert(kNumConstants <= 60);
constexpr std::size_t kNumFittedConstants = [] {
  std::size_t count = 0;
  while (count < kNumConstants && !kRows[count].is_stated) ++count;
  return count;
}();

struct FittedRow {
  std::string_view excluded_source;  // "": fitted on all data
  std::array<double, kNumFittedConstants> values;
};
constexpr FittedRow kFitted[] = {
#include "cost/fitted.inc"
};

Constants constants_from(const FittedRow& row) {
  Constants constants;  // stated constants keep these values
  for (std::size_t i = 0; i < kNumFittedConstants; ++i) constants.*kRows[i].member = row.values[i];
  return constants;
}

}  // namespace

std::span<const ConstantRow> constant_rows() { return kRows; }

const Constants& fitted_constants() {
  static const Constants constants = constants_from(kFitted[0]);
  return constants;
}

Constants constants_fitted_without(std::string_view source) {
  for (const FittedRow& row : kFitted)
    if (!row.excluded_source.empty() && row.excluded_source == source) return constants_from(row);
  return fitted_constants();
}

std::vector<std::string_view> left_out_sources() {
  std::vector<std::string_view> sources;
  for (const FittedRow& row : kFitted)
    if (!row.excluded_source.empty()) sources.push_back(row.excluded_source);
  return sources;
}

}  // namespace optimus
