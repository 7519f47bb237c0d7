// See family.h.
#include "model/family.h"

#include "base/error.h"

namespace optimus {
namespace {

constexpr auto kLayer = NormKind::layer_norm;
constexpr auto kRms = NormKind::rms_norm;
constexpr auto kPre = NormPosition::pre;
constexpr auto kPost = NormPosition::post;
constexpr auto kLearned = PositionKind::learned;
constexpr auto kRope = PositionKind::rope;

// clang-format off
constexpr FamilyTraits kFamilies[] = {
  // family, model_type, architecture; norm, its position, positions; is_gated, has_grouped_heads,
  // has_independent_head_dim, has_qk_norm, is_causal, is_mixture, is_latent
  {Family::gpt2, "gpt2", "GPT2LMHeadModel",
   kLayer, kPre,  kLearned,  false, false, false, false, true},
  {Family::llama, "llama", "LlamaForCausalLM",
   kRms,   kPre,  kRope,     true,  true,  true,  false, true},
  {Family::mistral, "mistral", "MistralForCausalLM",
   kRms,   kPre,  kRope,     true,  true,  true,  false, true},
  {Family::qwen2, "qwen2", "Qwen2ForCausalLM",
   kRms,   kPre,  kRope,     true,  true,  true,  false, true},
  {Family::qwen3, "qwen3", "Qwen3ForCausalLM",
   kRms,   kPre,  kRope,     true,  true,  true,  true,  true},
  {Family::bert, "bert", "BertForMaskedLM",
   kLayer, kPost, kLearned,  false, false, false, false, false},
  {Family::megatron_bert, "megatron-bert", "MegatronBertForMaskedLM",
   kLayer, kPre,  kLearned,  false, false, false, false, false},
  // Mixtures of experts are last.
  {Family::mixtral, "mixtral", "MixtralForCausalLM",
   kRms,   kPre,  kRope,     true,  true,  true,  false, true,  true},
  {Family::qwen3_moe, "qwen3_moe", "Qwen3MoeForCausalLM",
   kRms,   kPre,  kRope,     true,  true,  true,  true,  true,  true},
  {Family::deepseek_v3, "deepseek_v3", "DeepseekV3ForCausalLM",
   kRms,   kPre,  kRope,     true,  false, true,  false, true,  true,  true},
};
// clang-format on

}  // namespace

std::span<const FamilyTraits> all_families() { return kFamilies; }

const FamilyTraits& traits(Family family) {
  for (const FamilyTraits& row : kFamilies)
    if (row.family == family) return row;
  ensure(false, "family {} is not in the table", static_cast<int>(family));
  return kFamilies[0];
}

std::string text(Family family) { return std::string(traits(family).model_type); }

}  // namespace optimus
