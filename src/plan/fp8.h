// fp8 GEMMs as plain data: which layers compute in fp8, how tensors are scaled into the fp8 range, and the
// history of maxima (amax) from which the scales are computed.
//
//   forward         y = x W^T       x and W in e4m3 (up to 448, 3 mantissa bits)
//   input gradient  dx = dy W       dy in e5m2 (up to 57344, 2 mantissa bits)
//   weight gradient dW += dy^T x
//
// Everything outside the GEMMs (sums, master weights, moments) is computed as without fp8.
//
// A slot is one operand of one GEMM of one layer. A tensor is multiplied by the scale of its slot and
// rounded, and the result of the GEMM is divided by both scales. Scales are powers of two, so the rounding
// to 8 bits is the only loss, and they are equal on all devices. A scale follows from the largest absolute
// values of the slot's whole tensor in the steps of a window, over all micro-batches and all devices. It is
// therefore the same under any plan and known before the step begins. Without a history (in the first step)
// a GEMM is computed as without fp8, and its maxima are recorded. A step with a non-finite gradient records
// no maxima. With Fp8Scaling::current, inputs and gradients are scaled by their own maximum in the current
// micro-batch instead: they never saturate, at the price of one more pass over each tensor.
//
// Read next: engine/fp8_scales.h (maxima and scales on the devices), engine/fp8_gemm.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.h"

namespace optimus {

// The blocks of the plan that compute in fp8: those that the plan lists, or, with precision fp8 and an empty
// list, all layers except the first and the last. Never the embedding or the head.
std::vector<int> fp8_blocks(const Plan& plan);
bool has_fp8(const Plan& plan);
std::string fp8_text(const Plan& plan);  // "blocks 2..11, window 16"; "none"
// The suffix of fp8_text for a scaling: "" or ", current scaling".
std::string scaling_text(Fp8Scaling scaling);

// A longer window would follow a shrinking gradient too slowly to be useful, and its history is state that
// must be saved.
inline constexpr int kMaxFp8Window = 1024;

enum class LayerGemm { qkv, out, up, down };  // up includes the gate if the layer has one
enum class Fp8Operand { input, weight, gradient };
inline constexpr int kNumLayerGemms = 4, kNumFp8Operands = 3;
inline constexpr int kFp8SlotsOfLayer = kNumLayerGemms * kNumFp8Operands;

// The slots of all layers are numbered consecutively.
int fp8_slot(int layer, LayerGemm gemm, Fp8Operand operand);
int num_fp8_slots(const Plan& plan);
std::string fp8_slot_name(int slot);  // "layers.3.attention.qkv.input"
// The index of the slot with this name; -1 if there is none.
int fp8_slot_of(std::string_view name);

// The largest exponent with maximum * 2^exponent <= 448 (e4m3: inputs and weights) or <= 57344 (e5m2:
// gradients); 0 for a maximum of 0. Limited to ±126, so that the scale and its inverse are normal fp32
// numbers.
int fp8_exponent(Fp8Operand operand, float maximum);

// The maxima of the most recent steps, oldest first: [step][slot].
struct Fp8History {
  std::vector<std::vector<float>> steps;
  bool is_empty() const { return steps.empty(); }
  // Adds the maxima of one finite step and drops steps older than `window`. A non-finite maximum is replaced
  // by the largest one of the earlier steps.
  void add(std::vector<float> maxima, int window);
  float maximum(int slot) const;  // the largest maximum of the slot in the window
  bool operator==(const Fp8History&) const = default;
};

}  // namespace optimus
