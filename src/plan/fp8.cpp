// See fp8.h.
#include "plan/fp8.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "plan/ranges.h"

namespace optimus {
namespace {

constexpr const char* kGemmNames[] = {"attention.qkv", "attention.out", "mlp.up", "mlp.down"};
constexpr const char* kOperandNames[] = {"input", "weight", "gradient"};

}  // namespace

std::vector<int> fp8_blocks(const Plan& plan) {
  if (plan.precision != Precision::fp8 || !plan.fp8.blocks.empty()) return plan.fp8.blocks;
  std::vector<int> layers;
  for (int block = 2; block < plan.num_blocks - 2; ++block) layers.push_back(block);
  return layers;
}

bool has_fp8(const Plan& plan) { return !fp8_blocks(plan).empty(); }

std::string scaling_text(Fp8Scaling scaling) {
  return scaling == Fp8Scaling::current ? ", current scaling" : "";
}

std::string fp8_text(const Plan& plan) {
  const std::vector<int> blocks = fp8_blocks(plan);
  if (blocks.empty()) return "none";
  return fmt::format("blocks {}, window {}{}", ranges_text(blocks), plan.fp8.window,
                     scaling_text(plan.fp8.scaling));
}

int fp8_slot(int layer, LayerGemm gemm, Fp8Operand operand) {
  return (layer * kNumLayerGemms + static_cast<int>(gemm)) * kNumFp8Operands + static_cast<int>(operand);
}

int num_fp8_slots(const Plan& plan) { return (plan.num_blocks - 2) * kFp8SlotsOfLayer; }

std::string fp8_slot_name(int slot) {
  const int gemm = slot / kNumFp8Operands % kNumLayerGemms;
  return fmt::format("layers.{}.{}.{}", slot / kFp8SlotsOfLayer, kGemmNames[gemm],
                     kOperandNames[slot % kNumFp8Operands]);
}

int fp8_slot_of(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  if (!name.starts_with(kLayers)) return -1;
  int layer = 0;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kLayers.size(), end, layer);
  if (error != std::errc{} || layer < 0 || layer >= 1'000'000) return -1;
  for (int slot = layer * kFp8SlotsOfLayer; slot < (layer + 1) * kFp8SlotsOfLayer; ++slot)
    if (fp8_slot_name(slot) == name) return slot;
  return -1;
}

// The largest values of the formats are 448 = 0.875 * 2^9 and 57344 = 0.875 * 2^16. Let `maximum` = m * 2^k
// with m in [0.5, 1).
int fp8_exponent(Fp8Operand operand, float maximum) {
  ensure(std::isfinite(maximum) && maximum >= 0,
         "the amax of an fp8 tensor: expected a finite, non-negative number, got {}", maximum);
  if (maximum == 0) return 0;
  int k = 0;
  const float m = std::frexp(maximum, &k);
  const int largest = operand == Fp8Operand::gradient ? 16 : 9;
  return std::clamp(largest - k - (m > 0.875f ? 1 : 0), -126, 126);
}

void Fp8History::add(std::vector<float> maxima, int window) {
  for (std::size_t slot = 0; slot < maxima.size(); ++slot)
    if (!std::isfinite(maxima[slot])) maxima[slot] = maximum(static_cast<int>(slot));
  steps.push_back(std::move(maxima));
  if (std::ssize(steps) > window) steps.erase(steps.begin(), steps.end() - window);
}

float Fp8History::maximum(int slot) const {
  float largest = 0;
  for (const std::vector<float>& step : steps)
    largest = std::max(largest, step[static_cast<std::size_t>(slot)]);
  return largest;
}

}  // namespace optimus
