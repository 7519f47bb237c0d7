// fp8 GEMMs as plain data: which layers compute in fp8, how tensors are scaled into the fp8 range, and the
// amax history from which the scales are computed.
//
//   forward         y = x W^T       x and W in e4m3 (up to 448, 3 mantissa bits)
//   input gradient  dx = dy W       dy in e5m2 (up to 57344, 2 mantissa bits)
//   weight gradient dW += dy^T x
//
// Everything outside the GEMMs (sums, master weights, moments) is computed in the same way as without fp8.
//
// A slot is one operand of one GEMM of one layer. A tensor is multiplied by the scale of its slot and
// rounded, and the result of the GEMM is divided by both scales. Scales are powers of two, so the rounding to
// 8 bits is the only loss, and they are equal on all devices. A scale is computed from the amax (largest
// absolute value) of the slot's whole tensor in each step of a window, over all micro-batches and all
// devices. It is therefore the same under any plan, and it is known before the step starts. In the first step
// there is no history, so GEMMs do not use fp8, and only their amax values are recorded. A step with
// non-finite gradients records no amax values. With Fp8Scaling::current, inputs and gradients are instead
// scaled by their own amax in the current micro-batch. They never saturate, at the cost of one more pass over
// each tensor.
//
// Read next: engine/fp8_scales.h (amax values and scales on the devices), engine/fp8_gemm.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.h"

namespace optimus {

// The blocks of the plan that compute in fp8. If the plan lists no blocks and its precision is fp8, these are
// all layers except the first and the last. The embedding and the head never compute in fp8.
std::vector<int> fp8_blocks(const Plan& plan);
bool has_fp8(const Plan& plan);
std::string fp8_text(const Plan& plan);  // "blocks 2..11, window 16"; "none"
// The suffix of fp8_text for a scaling: "" or ", current scaling".
std::string scaling_text(Fp8Scaling scaling);

// The limit exists because a longer window would follow shrinking gradients too slowly to be useful, and
// because its history must be saved in checkpoints.
inline constexpr int kMaxFp8Window = 1024;

enum class LayerGemm { qkv, out, up, down };  // `up` includes the gate projection if the layer has one
enum class Fp8Operand { input, weight, gradient };
inline constexpr int kNumLayerGemms = 4, kNumFp8Operands = 3;
inline constexpr int kFp8SlotsOfLayer = kNumLayerGemms * kNumFp8Operands;

// The slots of all layers are numbered consecutively.
int fp8_slot(int layer, LayerGemm gemm, Fp8Operand operand);
int num_fp8_slots(const Plan& plan);
std::string fp8_slot_name(int slot);  // "layers.3.attention.qkv.input"
// Returns the index of the slot with this name, or -1 if no slot has this name.
int fp8_slot_of(std::string_view name);

// The largest exponent for which maximum * 2^exponent <= 448 (e4m3: inputs and weights) or <= 57344 (e5m2:
// gradients). The exponent is 0 if the maximum is 0. It is limited to ±126, so that the scale and its inverse
// are normal fp32 numbers.
int fp8_exponent(Fp8Operand operand, float maximum);

// The amax values of the most recent steps, oldest first: [step][slot].
struct Fp8History {
  std::vector<std::vector<float>> steps;
  bool is_empty() const { return steps.empty(); }
  // Adds the amax values of one step with finite gradients, and drops the steps before the last `window`
  // steps. A non-finite value is replaced by the slot's largest amax in the earlier steps.
  void add(std::vector<float> maxima, int window);
  float maximum(int slot) const;  // the slot's largest amax in the window
  bool operator==(const Fp8History&) const = default;
};

}  // namespace optimus
