// Implements presets.h. The tables contain all data. A comment above a table applies to all of its rows.
#include "model/presets.h"

#include <span>

#include "base/text.h"
#include "model/family.h"

namespace optimus {
namespace {

struct Row {
  const char* name;
  std::int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, max_positions;
};

struct SharedSettings {
  double norm_eps = 1e-5, rope_theta = 10000, dropout = 0;
  bool is_tied = false;
  double llama3_factor = 0;  // factor of rotary scaling from 8,192 positions; 0 means no scaling
};

struct Series {
  Family family;
  SharedSettings shared;
  std::span<const Row> rows;
  Mixture mixture{};
  LatentAttention latent{};
};

// clang-format off

// GPT-2 as released.
constexpr Row kGpt2Sizes[] = {
  // name          layers hidden heads kv  dim    ffn  vocab  positions
  {"gpt2",           12,   768,  12,  12,  64,   3072, 50257, 1024},
  {"gpt2-medium",    24,  1024,  16,  16,  64,   4096, 50257, 1024},
  {"gpt2-large",     36,  1280,  20,  20,  64,   5120, 50257, 1024},
  {"gpt2-xl",        48,  1600,  25,  25,  64,   6400, 50257, 1024},
  // Megatron-LM, 2019.
  {"megatron-8.3b",  72,  3072,  32,  32,  96,  12288, 50257, 1024},
};

// The architecture of GPT-2 with shapes from the GPT-3 paper, the PTD-P paper (2021, "gpt-*") and MT-NLG. Two
// well-known errors in the table of the GPT-3 paper are corrected here: 1.3b has 16 heads, not 24, and 13b
// has a width of 5120, not 5140. The vocabulary size is the tokenizer's. The commonly used size of 51,200
// includes padding.
constexpr Row kGpt3[] = {
  {"gpt3-125m",      12,   768,  12,  12,  64,   3072, 50257, 2048},
  {"gpt3-350m",      24,  1024,  16,  16,  64,   4096, 50257, 2048},
  {"gpt3-760m",      24,  1536,  16,  16,  96,   6144, 50257, 2048},
  {"gpt3-1.3b",      24,  2048,  16,  16, 128,   8192, 50257, 2048},
  {"gpt3-2.7b",      32,  2560,  32,  32,  80,  10240, 50257, 2048},
  {"gpt3-6.7b",      32,  4096,  32,  32, 128,  16384, 50257, 2048},
  {"gpt3-13b",       40,  5120,  40,  40, 128,  20480, 50257, 2048},
  {"gpt3-175b",      96, 12288,  96,  96, 128,  49152, 50257, 2048},
  {"gpt-1.7b",       24,  2304,  24,  24,  96,   9216, 50257, 2048},
  {"gpt-3.6b",       30,  3072,  32,  32,  96,  12288, 50257, 2048},
  {"gpt-7.5b",       36,  4096,  32,  32, 128,  16384, 50257, 2048},
  {"gpt-18b",        40,  6144,  48,  48, 128,  24576, 50257, 2048},
  {"gpt-39b",        48,  8192,  64,  64, 128,  32768, 50257, 2048},
  {"gpt-76b",        60, 10240,  80,  80, 128,  40960, 50257, 2048},
  {"gpt-145b",       80, 12288,  96,  96, 128,  49152, 50257, 2048},
  {"gpt-310b",       96, 16384, 128, 128, 128,  65536, 50257, 2048},
  {"mt-nlg-530b",   105, 20480, 128, 128, 160,  81920, 50257, 2048},
  {"gpt-1t",        128, 25600, 160, 160, 160, 102400, 50257, 2048},
};

constexpr Row kLlama2[] = {
  {"llama2-7b",      32,  4096,  32,  32, 128,  11008,  32000, 4096},
  {"llama2-13b",     40,  5120,  40,  40, 128,  13824,  32000, 4096},
  {"llama2-70b",     80,  8192,  64,   8, 128,  28672,  32000, 4096},
};

constexpr Row kLlama3[] = {
  {"llama3-8b",      32,  4096,  32,   8, 128,  14336, 128256, 8192},
  {"llama3-70b",     80,  8192,  64,   8, 128,  28672, 128256, 8192},
  {"llama3-405b",   126, 16384, 128,   8, 128,  53248, 128256, 8192},
};

constexpr Row kLlama31[] = {
  {"llama3.1-8b",    32,  4096,  32,   8, 128,  14336, 128256, 131072},
  {"llama3.1-70b",   80,  8192,  64,   8, 128,  28672, 128256, 131072},
  {"llama3.1-405b", 126, 16384, 128,   8, 128,  53248, 128256, 131072},
  {"llama3.3-70b",   80,  8192,  64,   8, 128,  28672, 128256, 131072},
};

constexpr Row kLlama32[] = {
  {"llama3.2-1b",    16,  2048,  32,   8,  64,   8192, 128256, 131072},
  {"llama3.2-3b",    28,  3072,  24,   8, 128,   8192, 128256, 131072},
};

// The released config specifies a sliding window of 4,096, which later versions dropped. This preset has no
// window. For sequences up to 4,096, both are equivalent.
constexpr Row kMistral[] = {
  {"mistral-7b",     32,  4096,  32,   8, 128,  14336,  32000, 32768},
};

constexpr Row kQwen2Small[] = {
  {"qwen2-0.5b",     24,   896,  14,   2,  64,   4864, 151936, 131072},
  {"qwen2-1.5b",     28,  1536,  12,   2, 128,   8960, 151936, 131072},
  {"qwen2.5-0.5b",   24,   896,  14,   2,  64,   4864, 151936,  32768},
  {"qwen2.5-1.5b",   28,  1536,  12,   2, 128,   8960, 151936, 131072},
  {"qwen2.5-3b",     36,  2048,  16,   2, 128,  11008, 151936,  32768},
};

constexpr Row kQwen2Middle[] = {
  {"qwen2-7b",       28,  3584,  28,   4, 128,  18944, 152064, 131072},
  {"qwen2.5-7b",     28,  3584,  28,   4, 128,  18944, 152064, 131072},
};

constexpr Row kQwen2Large[] = {
  {"qwen2-72b",      80,  8192,  64,   8, 128,  29568, 152064, 131072},
  {"qwen2.5-14b",    48,  5120,  40,   8, 128,  13824, 152064, 131072},
  {"qwen2.5-32b",    64,  5120,  40,   8, 128,  27648, 152064, 131072},
  {"qwen2.5-72b",    80,  8192,  64,   8, 128,  29568, 152064, 131072},
};

constexpr Row kQwen3Small[] = {
  {"qwen3-0.6b",     28,  1024,  16,   8, 128,   3072, 151936, 40960},
  {"qwen3-1.7b",     28,  2048,  16,   8, 128,   6144, 151936, 40960},
  {"qwen3-4b",       36,  2560,  32,   8, 128,   9728, 151936, 40960},
};

constexpr Row kQwen3Large[] = {
  {"qwen3-8b",       36,  4096,  32,   8, 128,  12288, 151936, 40960},
  {"qwen3-14b",      40,  5120,  40,   8, 128,  17408, 151936, 40960},
  {"qwen3-32b",      64,  5120,  64,   8, 128,  25600, 151936, 40960},
};

// Mixtures of experts. The settings of the experts (kMixtral7bExperts etc.) apply to all layers. Qwen's
// configs also specify an ffn for dense layers, but the models have no dense layers.
constexpr Row kMixtral7b[] = {
  {"mixtral-8x7b",   32,  4096,  32,   8, 128,  14336,  32000, 32768},
};
constexpr Row kMixtral22b[] = {
  {"mixtral-8x22b",  56,  6144,  48,   8, 128,  16384,  32768, 65536},
};
constexpr Row kQwen3Moe30b[] = {
  {"qwen3-30b-a3b",  48,  2048,  32,   4, 128,   6144, 151936, 40960},
};
constexpr Row kQwen3Moe235b[] = {
  {"qwen3-235b-a22b", 94, 4096,  64,   4, 128,  12288, 151936, 40960},
};
// The shape used in pre-training, without the later context extension and without the multi-token prediction
// modules.
constexpr Row kDeepseekV3[] = {
  {"deepseek-v3",    61,  7168, 128, 128, 192,  18432, 129280, 4096},
};
constexpr Mixture kMixtral7bExperts{
    .experts = 8, .experts_per_token = 2, .ffn = 14336, .balance_loss = 0.02};
constexpr Mixture kMixtral22bExperts{
    .experts = 8, .experts_per_token = 2, .ffn = 16384, .balance_loss = 0.001};
constexpr Mixture kQwen3Moe30bExperts{.experts = 128, .experts_per_token = 8, .ffn = 768};
constexpr Mixture kQwen3Moe235bExperts{.experts = 128, .experts_per_token = 8, .ffn = 1536};
constexpr Mixture kDeepseekV3Experts{
    .experts = 256, .experts_per_token = 8, .ffn = 2048, .shared_ffn = 2048, .first_layer = 3,
    .groups = 8, .groups_per_token = 4, .scale = 2.5, .balance_loss = 0};
constexpr LatentAttention kDeepseekV3Latent{
    .query_rank = 1536, .kv_rank = 512, .rope_dim = 64, .value_dim = 128};

// These presets have the vocabulary of the uncased models.
constexpr Row kBertSizes[] = {
  {"bert-base",      12,   768,  12,  12,  64,   3072, 30522, 512},
  {"bert-large",     24,  1024,  16,  16,  64,   4096, 30522, 512},
};

constexpr Row kMegatronBertSizes[] = {
  {"megatron-bert-345m", 24, 1024, 16, 16, 64,   4096, 29056, 512},
  {"megatron-bert-1.3b", 24, 2048, 32, 32, 64,   8192, 29056, 512},
  {"megatron-bert-3.9b", 48, 2560, 40, 40, 64,  10240, 29056, 512},
};

constexpr Series kSeries[] = {
  {Family::gpt2,          {.dropout = 0.1, .is_tied = true},                            kGpt2Sizes},
  {Family::gpt2,          {.is_tied = true},                                            kGpt3},
  {Family::llama,         {},                                                           kLlama2},
  {Family::llama,         {.rope_theta = 500000},                                       kLlama3},
  {Family::llama,         {.rope_theta = 500000, .llama3_factor = 8},                   kLlama31},
  {Family::llama,         {.rope_theta = 500000, .is_tied = true, .llama3_factor = 32}, kLlama32},
  {Family::mistral,       {},                                                           kMistral},
  {Family::qwen2,         {.norm_eps = 1e-6, .rope_theta = 1e6, .is_tied = true},       kQwen2Small},
  {Family::qwen2,         {.norm_eps = 1e-6, .rope_theta = 1e6},                        kQwen2Middle},
  {Family::qwen2,         {.norm_eps = 1e-5, .rope_theta = 1e6},                        kQwen2Large},
  {Family::qwen3,         {.norm_eps = 1e-6, .rope_theta = 1e6, .is_tied = true},       kQwen3Small},
  {Family::qwen3,         {.norm_eps = 1e-6, .rope_theta = 1e6},                        kQwen3Large},
  {Family::mixtral,       {.rope_theta = 1e6},
   kMixtral7b, kMixtral7bExperts},
  {Family::mixtral,       {.rope_theta = 1e6},
   kMixtral22b, kMixtral22bExperts},
  {Family::qwen3_moe,     {.norm_eps = 1e-6, .rope_theta = 1e6},
   kQwen3Moe30b, kQwen3Moe30bExperts},
  {Family::qwen3_moe,     {.norm_eps = 1e-6, .rope_theta = 1e6},
   kQwen3Moe235b, kQwen3Moe235bExperts},
  {Family::deepseek_v3,   {.norm_eps = 1e-6},
   kDeepseekV3, kDeepseekV3Experts, kDeepseekV3Latent},
  {Family::bert,          {.norm_eps = 1e-12, .dropout = 0.1, .is_tied = true},         kBertSizes},
  {Family::megatron_bert, {.norm_eps = 1e-12, .dropout = 0.1, .is_tied = true},         kMegatronBertSizes},
};
// clang-format on

Activation default_activation(Family family) {
  switch (family) {
    case Family::gpt2:
      return Activation::gelu_tanh;
    case Family::llama:
    case Family::mistral:
    case Family::qwen2:
    case Family::qwen3:
    case Family::mixtral:
    case Family::qwen3_moe:
    case Family::deepseek_v3:
      return Activation::silu;
    case Family::bert:
    case Family::megatron_bert:
      return Activation::gelu;
  }
  return Activation::gelu;
}

ModelSpec make_spec(const Series& series, const Row& row) {
  ModelSpec spec = blank_spec(series.family);
  spec.name = row.name;
  spec.layers = row.layers, spec.hidden = row.hidden;
  spec.heads = row.heads, spec.kv_heads = row.kv_heads, spec.head_dim = row.head_dim;
  spec.ffn = row.ffn, spec.vocab = row.vocab, spec.max_positions = row.max_positions;
  spec.mixture = series.mixture, spec.latent = series.latent;
  spec.token_types = spec.is_bert() ? 2 : 0;
  spec.activation = default_activation(series.family);
  spec.norm_eps = series.shared.norm_eps;
  spec.rope_theta = series.shared.rope_theta;
  spec.is_tied = series.shared.is_tied;
  spec.embedding_dropout = spec.hidden_dropout = spec.attention_dropout = series.shared.dropout;
  if (series.shared.llama3_factor > 0)
    spec.rope_scaling = {RopeScalingKind::llama3, series.shared.llama3_factor, 1, 4, 8192};
  return spec;
}

}  // namespace

std::optional<ModelSpec> find_preset(std::string_view name) {
  const std::string wanted_name = lower(name);
  for (const Series& series : kSeries)
    for (const Row& row : series.rows)
      if (row.name == wanted_name) return make_spec(series, row);
  return std::nullopt;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Series& series : kSeries)
    for (const Row& row : series.rows) names.emplace_back(row.name);
  return names;
}

}  // namespace optimus
