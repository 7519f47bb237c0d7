// Implements constants.h. The table lists the bounds and the meaning of each constant. fitted.inc contains
// the values.
#include "cost/constants.h"

#include <array>
#include <cstddef>

namespace optimus {
namespace {

using C = Constants;

constexpr ConstantRow kRows[] = {
    {"product.ampere", &C::gemm_ampere, 0.6, 1.25,
     "GEMM speed on Ampere and Volta, relative to their efficiency curves"},
    {"product.hopper", &C::gemm_hopper, 0.6, 1.4, "GEMM speed on Hopper, relative to its efficiency curve"},
    {"product.blackwell", &C::gemm_blackwell, 0.6, 1.4,
     "GEMM speed on Blackwell, relative to its efficiency curve"},
    {"size.ampere", &C::size_ampere, 0.3, 3,
     "factor on the GEMM size at which Ampere's efficiency curve is read"},
    {"size.hopper", &C::size_hopper, 0.3, 3,
     "factor on the GEMM size at which Hopper's efficiency curve is read"},
    {"size.blackwell", &C::size_blackwell, 0.3, 3,
     "factor on the GEMM size at which Blackwell's efficiency curve is read"},
    {"wave", &C::wave, 0.02, 1.2,
     "exponent of the GEMM speed loss from a partially filled last wave of tiles"},
    {"ultra", &C::blackwell_ultra, 0.9, 1.5, "speed of Blackwell Ultra, relative to Blackwell"},
    {"fp8.emulated", &C::fp8_emulated, 0.3, 1,
     "GEMM speed with block scales if the device does not support them, relative to native support"},
    {"fp8", &C::fp8, 0.4, 1.5, "fp8 GEMM speed, relative to the efficiency curve at the fp8 peak"},
    {"fp8.blocks", &C::fp8_blocks, 0.4, 1.3,
     "fp8 GEMM speed with a scale per block, relative to other fp8 GEMMs"},
    {"fp4", &C::fp4, 0.2, 1.3,
     "attained fraction of the fp4 peak, relative to the attained fraction of the fp8 peak"},
    {"fp8.cast", &C::fp8_cast, 0.1, 6, "memory traffic of fp8 casts, relative to the counted bytes"},
    {"power", &C::power, 0.05, 1.2, "exponent of GEMM speed as a function of the power limit"},
    {"flash.ampere", &C::flash_ampere, 0.3, 1, "flash attention speed on Ampere, relative to the peak"},
    {"flash.hopper", &C::flash_hopper, 0.2, 1, "flash attention speed on Hopper, relative to the peak"},
    {"flash.blackwell", &C::flash_blackwell, 0.2, 1,
     "flash attention speed on Blackwell, relative to the peak"},
    {"flash.first", &C::flash_v1, 0.3, 1, "FlashAttention 1 speed, relative to newer flash attention"},
    {"flash.portable", &C::flash_portable, 0.3, 1,
     "flash attention speed without Hopper's special instructions, relative to using them"},
    {"flash.backward", &C::flash_backward, 0.4, 1.2,
     "flash attention speed in the backward pass, relative to the forward pass"},
    {"flash.head", &C::flash_head, 2, 120,
     "flash attention speed is proportional to head_dim / (head_dim + this)"},
    {"unaligned", &C::unaligned, 0.05, 1,
     "unfused attention speed if head_dim is not a multiple of 8, relative to aligned heads"},
    {"score.product", &C::score_gemm, 0.2, 1.5,
     "GEMM speed in unfused attention, relative to the efficiency curve"},
    {"score.traffic", &C::score_traffic, 0.3, 3,
     "memory traffic of unfused attention, relative to the counted bytes"},
    {"bandwidth", &C::bandwidth, 0.5, 0.95, "attained fraction of the memory bandwidth"},
    {"traffic.fused", &C::fused_traffic, 0.5, 4,
     "memory traffic between GEMMs with hand-fused kernels, relative to the counted bytes"},
    {"traffic.compiled", &C::compiled_traffic, 0.5, 4,
     "memory traffic between GEMMs with compiled kernels, relative to the counted bytes"},
    {"traffic.eager", &C::eager_traffic, 0.5, 6,
     "memory traffic between GEMMs with one kernel per operation, relative to the counted bytes"},
    {"traffic.loss", &C::loss_traffic, 0.5, 12, "memory traffic of the loss, relative to the counted bytes"},
    {"traffic.gradient", &C::gradient_traffic, 0.2, 4,
     "memory traffic of weight gradient accumulation, relative to the counted bytes"},
    {"traffic.optimizer", &C::optimizer_traffic, 0.4, 5,
     "memory traffic of the optimizer update, relative to the counted bytes"},
    {"launch", &C::launch, 2e-6, 100e-6, "seconds of host time per kernel"},
    {"launch.eager", &C::launch_eager, 2e-6, 150e-6,
     "seconds of host time per kernel with one kernel per operation"},
    {"domain.speed", &C::domain_speed, 0.3, 1.1,
     "speed of intra-domain links, relative to their efficiency curves"},
    {"network.speed", &C::network_speed, 0.2, 1.1,
     "speed of network links, relative to their efficiency curves"},
    {"domain.latency", &C::domain_latency, 0.2, 8,
     "latency of intra-domain links, relative to the specified latency"},
    {"network.latency", &C::network_latency, 0.2, 20,
     "latency of network links, relative to the specified latency"},
    {"network.crowding", &C::network_contention, 0.0005, 0.5,
     "fraction of network bandwidth lost per doubling of nodes"},
    {"tensor.hidden", &C::tensor_hidden, 0.05, 0.98,
     "hidden fraction of overlapped tensor-parallel communication"},
    {"interference", &C::interference, 0.01, 0.8,
     "seconds that compute loses per second of concurrent communication"},
    {"host.slot", &C::slot_seconds, 1e-6, 5e-3, "seconds of host time per micro-batch and chunk"},
    {"host.step", &C::step_seconds, 1e-3, 0.3, "seconds of host time per step"},
    {"shard.turn", &C::broadcast_turn_seconds, 1e-4, 20e-3,
     "seconds per rank that broadcasts its shard of the parameters"},
    {"straggling", &C::straggler_loss, 0.0003, 0.03,
     "fraction of the step time lost to stragglers per doubling of nodes"},
    {"memory.context", &C::context_bytes, 0.3e9, 4e9,
     "bytes that a process needs in addition to its tensors"},
    {"memory.group", &C::group_bytes, 0.02e9, 1e9, "bytes per communicator"},
    {"memory.reserve", &C::reserve, 0.001, 0.3,
     "fraction of activation memory that the allocator reserves but does not use"},
    {"memory.live", &C::live_factor, 0.6, 1.6, "size of temporary tensors, relative to the counted bytes"},
    // Constants that are set by hand instead of fitted come last.
    {"expert.imbalance", &C::expert_imbalance, 1, 4, "tokens on the busiest MoE device, relative to the mean",
     true},
    {"expert.product", &C::expert_gemm, 0.2, 1.2, "grouped GEMM speed, relative to one GEMM of the same size",
     true},
    {"residual.compute", &C::compute_residual, 0.02, 50,
     "measured time of GEMMs and attention, relative to the prediction", true},
    {"residual.memory", &C::memory_residual, 0.02, 50,
     "measured time of memory traffic, relative to the prediction", true},
    {"residual.host", &C::host_residual, 0.001, 50, "measured host time, relative to the prediction", true},
    {"residual.links", &C::link_residual, 0.02, 50,
     "measured time on links between devices, relative to the prediction", true},
    {"residual.rings", &C::ring_residual, 0.02, 50,
     "factor on the time of collectives between nodes, on top of residual.links", true},
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
  std::string_view excluded_source;  // empty: fitted on all data
  std::array<double, kNumFittedConstants> values;
};
constexpr FittedRow kFitted[] = {
#include "cost/fitted.inc"
};

Constants constants_from(const FittedRow& row) {
  Constants constants;  // constants that are not fitted keep these values
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
