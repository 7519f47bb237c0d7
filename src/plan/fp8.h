// Products in 8 bits, as far as plain data goes: which layers multiply so, how numbers are scaled into the few that 8 bits have, and
// the maxima of the last steps that scales come from.
//
//   forward         y = x W^T       x and W in e4m3 (up to 448, 3 bits behind the point)
//   input gradient  dx = dy W       dy in e5m2 (up to 57344, 2 bits)
//   weight gradient dW += dy^T x    what is between products, sums, masters and moments are as without fp8
//
// A slot is one operand of one product of one layer. A tensor is multiplied by its slot's scale, rounded, and the product divided by
// both scales. Scales are powers of two, so that nothing but the rounding to 8 bits is lost, and the same on every device. They come
// from the largest numbers that the slot's whole tensor had in the steps of a window, all micro-batches and all devices together: a
// scale is the same under any plan, and known before the step begins. While there is no history (the first step) a product
// is computed as without fp8, and measured. A step whose gradient is not finite leaves none. With Fp8Scaling::current, inputs and gradients
// have the scale of their own maximum instead, in the micro-batch at hand: nothing of these is ever cut, for a pass more over each.
//
// Read next: engine/fp8_scales.h (maxima and scales where the tensors are), engine/fp8_products.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.h"

namespace optimus {

// The plan's blocks that multiply in 8 bits: those that it names; with precision fp8 and none named, all layers but the first and
// the last. Never the embedding or the head.
std::vector<int> fp8_blocks(const Plan& plan);
bool has_fp8(const Plan& plan);
std::string fp8_text(const Plan& plan);       // "blocks 2..11, window 16"; "none"
std::string scales_text(Fp8Scaling scaling);  // behind that: nothing, or ", scales of the tensor at hand"

// Scales of a longer window would follow a falling gradient too late to be of use, and a history of it is state to be saved.
inline constexpr int kLongestFp8Window = 1024;

enum class LayerProduct { qkv, out, up, down };  // up: with the gate, where there is one
enum class Fp8Operand { input, weight, gradient };
inline constexpr int kNumLayerProducts = 4, kNumFp8Operands = 3;
inline constexpr int kFp8SlotsOfLayer = kNumLayerProducts * kNumFp8Operands;

// Slots of all layers lie one behind the other.
int fp8_slot(int layer, LayerProduct product, Fp8Operand operand);
int num_fp8_slots(const Plan& plan);
std::string fp8_slot_name(int slot);  // "layers.3.attention.qkv.input"
// -1 where it is no slot's.
int fp8_slot_of(std::string_view name);

// The exponent of the largest power of two that takes `maximum` to what the operand's format holds: maximum * 2^exponent <= 448 or
// 57344. 0 for a maximum of 0; within ±126, so that scale and inverse are ordinary fp32 numbers.
int fp8_exponent(Fp8Operand operand, float maximum);

// The maxima of the last steps, the oldest first: [step][slot].
struct Fp8History {
  std::vector<std::vector<float>> steps;
  bool is_empty() const { return steps.empty(); }
  // Those of a step that counts; at most `window` steps are kept. What is not finite counts as the largest of the steps before.
  void add(std::vector<float> maxima, int window);
  float maximum(int slot) const;  // over the window
  bool operator==(const Fp8History&) const = default;
};

}  // namespace optimus
