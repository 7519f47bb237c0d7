// See hf_names.h.
#include "model/hf_names.h"

#include "base/error.h"

namespace optimus {
namespace {

constexpr HfNames kGpt2{
    .words = "transformer.wte",
    .positions = "transformer.wpe",
    .token_types = nullptr,
    .embedding_norm = nullptr,
    .layers = "transformer.h.",
    .norm1 = "ln_1",
    .q = "attn.c_attn",
    .k = "attn.c_attn",
    .v = "attn.c_attn",
    .q_norm = nullptr,
    .k_norm = nullptr,
    .out = "attn.c_proj",
    .norm2 = "ln_2",
    .gate = nullptr,
    .up = "mlp.c_fc",
    .down = "mlp.c_proj",
    .final_norm = "transformer.ln_f",
    .transform = nullptr,
    .transform_norm = nullptr,
    .output = "lm_head",
    .has_conv1d = true,
};

constexpr HfNames kLlama{
    .words = "model.embed_tokens",
    .positions = nullptr,
    .token_types = nullptr,
    .embedding_norm = nullptr,
    .layers = "model.layers.",
    .norm1 = "input_layernorm",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .q_norm = "self_attn.q_norm",
    .k_norm = "self_attn.k_norm",
    .out = "self_attn.o_proj",
    .norm2 = "post_attention_layernorm",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
    .final_norm = "model.norm",
    .transform = nullptr,
    .transform_norm = nullptr,
    .output = "lm_head",
    .has_conv1d = false,
    .router = "mlp.gate",
    .expert_up = "mlp.experts.gate_up_proj",
    .expert_down = "mlp.experts.down_proj",
    .q_down = "self_attn.q_a_proj",
    .q_down_norm = "self_attn.q_a_layernorm",
    .q_up = "self_attn.q_b_proj",
    .kv_down = "self_attn.kv_a_proj_with_mqa",
    .kv_down_norm = "self_attn.kv_a_layernorm",
    .kv_up = "self_attn.kv_b_proj",
    .shared_gate = "mlp.shared_experts.gate_proj",
    .shared_up = "mlp.shared_experts.up_proj",
    .shared_down = "mlp.shared_experts.down_proj",
};

// In both BERT families, the output bias is "cls.predictions.bias", and the output matrix is the word
// embedding.
constexpr HfNames kBert{
    .words = "bert.embeddings.word_embeddings",
    .positions = "bert.embeddings.position_embeddings",
    .token_types = "bert.embeddings.token_type_embeddings",
    .embedding_norm = "bert.embeddings.LayerNorm",
    .layers = "bert.encoder.layer.",
    .norm1 = "attention.output.LayerNorm",
    .q = "attention.self.query",
    .k = "attention.self.key",
    .v = "attention.self.value",
    .q_norm = nullptr,
    .k_norm = nullptr,
    .out = "attention.output.dense",
    .norm2 = "output.LayerNorm",
    .gate = nullptr,
    .up = "intermediate.dense",
    .down = "output.dense",
    .final_norm = nullptr,
    .transform = "cls.predictions.transform.dense",
    .transform_norm = "cls.predictions.transform.LayerNorm",
    .output = "cls.predictions",
    .has_conv1d = false,
};

constexpr HfNames megatron_bert_names() {
  HfNames names = kBert;
  names.embedding_norm = nullptr;
  names.norm1 = "attention.ln";
  names.norm2 = "ln";
  names.final_norm = "bert.encoder.ln";
  return names;
}

constexpr HfNames kMegatronBert = megatron_bert_names();

}  // namespace

const HfNames& hf_names(Family family) {
  switch (family) {
    case Family::gpt2:
      return kGpt2;
    case Family::llama:
    case Family::mistral:
    case Family::qwen2:
    case Family::qwen3:
    case Family::mixtral:
    case Family::qwen3_moe:
    case Family::deepseek_v3:
      return kLlama;
    case Family::bert:
      return kBert;
    case Family::megatron_bert:
      return kMegatronBert;
  }
  ensure(false, "family {} has no Hugging Face names", static_cast<int>(family));
  return kGpt2;
}

}  // namespace optimus
