// See constants.h. The table gives each constant its bounds and its meaning; fitted.inc gives the values.
#include "cost/constants.h"

#include <array>
#include <cstddef>

namespace optimus {
namespace {

using C = Constants;

// clang-format off
constexpr ConstantRow kRows[] = {
  {"product.ampere",      &C::product_ampere,    0.6, 1.25, "products on Ampere and Volta, of their curve"},
  {"product.hopper",      &C::product_hopper,    0.6, 1.4, "products on Hopper, of its curve"},
  {"product.blackwell",   &C::product_blackwell, 0.6, 1.4, "products on Blackwell, of its curve"},
  {"size.ampere",         &C::size_ampere,       0.3, 3,   "size at which Ampere's curve is read"},
  {"size.hopper",         &C::size_hopper,       0.3, 3,   "size at which Hopper's curve is read"},
  {"size.blackwell",      &C::size_blackwell,    0.3, 3,   "size at which Blackwell's curve is read"},
  {"wave",                &C::wave,              0.02, 1.2, "loss by a last, partly filled round of tiles, exponent"},
  {"ultra",               &C::ultra,             0.9, 1.5, "Blackwell Ultra, of Blackwell"},
  {"fp8.emulated",        &C::fp8_emulated,      0.3, 1,   "block scales without hardware for them, of that"},
  {"fp8",                 &C::fp8,               0.4, 1.5, "8-bit products, of the curve on the 8-bit peak"},
  {"fp8.blocks",          &C::fp8_blocks,        0.4, 1.3, "a scale for each block, of that"},
  {"fp4",                 &C::fp4,               0.2, 1.3, "4 bits on their peak, of 8 bits on theirs"},
  {"fp8.cast",            &C::fp8_cast,          0.1, 6,   "traffic of casting, of the counted one"},
  {"power",               &C::power,             0.05, 1.2, "speed of products over power, exponent"},
  {"flash.ampere",        &C::flash_ampere,      0.3, 1,   "flash attention, of the peak"},
  {"flash.hopper",        &C::flash_hopper,      0.2, 1,   "the same"},
  {"flash.blackwell",     &C::flash_blackwell,   0.2, 1,   "the same"},
  {"flash.first",         &C::flash_first,       0.3, 1,   "the first kernels, of that"},
  {"flash.portable",      &C::flash_portable,    0.3, 1,   "kernels without Hopper's instructions there, of that"},
  {"flash.backward",      &C::flash_backward,    0.4, 1.2, "its backward, of the forward's speed"},
  {"flash.head",          &C::flash_head,        2, 120,   "head_dim / (head_dim + this)"},
  {"unaligned",           &C::unaligned,         0.05, 1,  "unfused attention with heads no multiple of 8 wide"},
  {"score.product",       &C::score_product,     0.2, 1.5, "products of unfused attention, of the curve"},
  {"score.traffic",       &C::score_traffic,     0.3, 3,   "traffic of unfused attention, of the counted one"},
  {"bandwidth",           &C::bandwidth,         0.5, 0.95, "reached memory bandwidth"},
  {"traffic.fused",       &C::fused_traffic,     0.5, 4,   "between products, hand-fused: of the counted traffic"},
  {"traffic.compiled",    &C::compiled_traffic,  0.5, 4,   "the same, compiled"},
  {"traffic.eager",       &C::eager_traffic,     0.5, 6,   "the same, one kernel an operation"},
  {"traffic.loss",        &C::loss_traffic,      0.5, 12,  "of the loss"},
  {"traffic.gradient",    &C::gradient_traffic,  0.2, 4,   "of adding weight gradients up"},
  {"traffic.optimizer",   &C::optimizer_traffic, 0.4, 5,   "of the update"},
  {"launch",              &C::launch,            2e-6, 100e-6, "seconds of the host for a kernel"},
  {"launch.eager",        &C::launch_eager,      2e-6, 150e-6, "the same, one kernel an operation"},
  {"domain.speed",        &C::domain_speed,      0.3, 1.1, "fast links, of their curve"},
  {"network.speed",       &C::network_speed,     0.2, 1.1, "network links, of their curve"},
  {"domain.latency",      &C::domain_latency,    0.2, 8,   "of fast links, of the stated one"},
  {"network.latency",     &C::network_latency,   0.2, 20,  "of network links, of the stated one"},
  {"network.crowding",    &C::crowding,          0.0005, 0.5, "lost network bandwidth for each doubling of nodes"},
  {"tensor.hidden",       &C::tensor_hidden,     0.05, 0.98, "hidden part of overlapped tensor-parallel communication"},
  {"interference",        &C::interference,      0.01, 0.8, "seconds lost by compute for a second of communication beside it"},
  {"host.slot",           &C::slot_seconds,      1e-6, 5e-3, "seconds of the host for each micro-batch and chunk"},
  {"host.step",           &C::step_seconds,      1e-3, 0.3, "seconds of the host for each step"},
  {"shard.turn",          &C::turn_seconds,      1e-4, 20e-3, "seconds for each owner that broadcasts its shard"},
  {"straggling",          &C::straggling,        0.0003, 0.03, "part of the step lost for each doubling of nodes"},
  {"memory.context",      &C::context_bytes,     0.3e9, 4e9, "bytes of a process beside its tensors"},
  {"memory.group",        &C::group_bytes,       0.02e9, 1e9, "bytes of a communicator"},
  {"memory.reserve",      &C::reserve,           0.001, 0.3, "part that the allocator holds without using it"},
  {"memory.live",         &C::live_factor,       0.6, 1.6, "temporary tensors, of the counted ones"},
  // Stated ones stand last.
  {"expert.imbalance",    &C::expert_imbalance,  1, 4,     "tokens of the busiest device of a mixture of experts, of the mean", true},
  {"expert.product",      &C::expert_product,    0.2, 1.2, "products of many experts at a time, of one as large", true},
  {"residual.compute",    &C::compute_residual,  0.02, 50, "seconds of products and attention, of the predicted ones", true},
  {"residual.memory",     &C::memory_residual,   0.02, 50, "of traffic through memory", true},
  {"residual.host",       &C::host_residual,     0.001, 50, "of the host", true},
  {"residual.links",      &C::link_residual,     0.02, 50, "of links between devices", true},
  {"residual.rings",      &C::ring_residual,     0.02, 50, "of collectives between nodes, beside that of links", true},
  {"residual.embedding",  &C::embedding_residual, 0.02, 50, "of what the embedding computes, beside the others", true},
  {"residual.head",       &C::head_residual,     0.02, 50, "of what the head computes, beside the others", true},
};
// clang-format on
constexpr std::size_t kNumber = std::size(kRows);
static_assert(kNumber <= 60);
constexpr std::size_t kNumberFitted = [] {
  std::size_t fitted = 0;
  while (fitted < kNumber && !kRows[fitted].is_stated) ++fitted;
  return fitted;
}();

struct FittedRow {
  std::string_view without;  // "" : all data
  std::array<double, kNumberFitted> values;
};
constexpr FittedRow kFitted[] = {
#include "cost/fitted.inc"
};

Constants made_from(const FittedRow& row) {
  Constants constants;  // the stated ones as they are there
  for (std::size_t i = 0; i < kNumberFitted; ++i) constants.*kRows[i].member = row.values[i];
  return constants;
}

}  // namespace

std::span<const ConstantRow> constant_rows() { return kRows; }

const Constants& fitted_constants() {
  static const Constants constants = made_from(kFitted[0]);
  return constants;
}

Constants constants_without(std::string_view source) {
  for (const FittedRow& row : kFitted)
    if (!row.without.empty() && row.without == source) return made_from(row);
  return fitted_constants();
}

std::vector<std::string_view> left_out_sources() {
  std::vector<std::string_view> sources;
  for (const FittedRow& row : kFitted)
    if (!row.without.empty()) sources.push_back(row.without);
  return sources;
}

}  // namespace optimus
