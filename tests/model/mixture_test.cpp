// Mixtures of experts: their parameters, the parameters that a token uses, and invalid mixtures.
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/hf_config.h"
#include "model/operations.h"
#include "model/presets.h"
#include "model/profile.h"
#include "model/random_spec.h"

namespace optimus {
namespace {

std::string mixture_error(const ModelSpec& spec) {
  try {
    validate(spec);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Mixture, ActiveParametersMatchPublishedFigures) {
  // Published figures of Mixtral and DeepSeek; Qwen's names contain a3b and a22b.
  EXPECT_EQ(num_active_parameters(*find_preset("mixtral-8x7b")), 12879925248);
  EXPECT_NEAR(static_cast<double>(num_active_parameters(*find_preset("mixtral-8x22b"))), 39e9, 0.5e9);
  EXPECT_NEAR(static_cast<double>(num_active_parameters(*find_preset("qwen3-30b-a3b"))), 3.3e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(num_active_parameters(*find_preset("qwen3-235b-a22b"))), 22e9, 0.5e9);
  EXPECT_NEAR(static_cast<double>(num_active_parameters(*find_preset("deepseek-v3"))), 37.5e9, 0.5e9);
  EXPECT_EQ(num_active_parameters(*find_preset("gpt2")), num_parameters(*find_preset("gpt2")));
}

TEST(Mixture, FlopsCountActiveParameters) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const ModelSpec spec = random_mixture(seed);
    ASSERT_EQ(mixture_error(spec), "") << seed;
    // 6 for each parameter in a GEMM that a token uses: all except embedding, norms and biases.
    std::int64_t in_products = num_active_parameters(spec);
    for (const LogicalTensor& tensor : logical_tensors(spec)) {
      const bool is_matrix = tensor.shape.num_dims == 2 && tensor.block > 0;
      if (!is_matrix) in_products -= tensor.shape.num_elements();
    }
    if (spec.is_tied) in_products += spec.vocab * spec.hidden;
    const double attention =
        6.0 * static_cast<double>(spec.layers * spec.heads * (spec.head_dim + spec.value_dim())) * 16;
    EXPECT_DOUBLE_EQ(model_flops_per_token(spec, 16), 6.0 * static_cast<double>(in_products) + attention)
        << seed;
    double forward = 0;
    for (int block = 0; block < num_blocks(spec); ++block)
      for (const Operation& op : operations(spec, block, 16)) forward += op.forward_flops;
    const double hidden_half =
        static_cast<double>(spec.layers * spec.heads * (spec.head_dim + spec.value_dim())) * 15;
    EXPECT_NEAR(3 * forward, model_flops_per_token(spec, 16) - 3 * hidden_half, 1e-6 * forward) << seed;
  }
}

TEST(Mixture, LayerKindsFollowConfig) {
  ModelSpec spec = *find_preset("deepseek-v3");
  EXPECT_FALSE(spec.is_mixture_layer(2));
  EXPECT_TRUE(spec.is_mixture_layer(3));
  EXPECT_EQ(num_blocks_of_pattern(spec, pattern(spec, 1)), 3);
  EXPECT_EQ(num_blocks_of_pattern(spec, pattern(spec, 61)), 58);
  spec = *find_preset("qwen3-30b-a3b");
  spec.mixture.layer_interval = 4;
  EXPECT_EQ(first_of_pattern(spec, pattern(spec, 4)), 4);
  EXPECT_EQ(num_blocks_of_pattern(spec, pattern(spec, 4)), 12);
  EXPECT_EQ(first_of_pattern(*find_preset("mixtral-8x7b"), static_cast<int>(BlockKind::layer)), -1);
}

TEST(Mixture, RejectsInvalidMixtures) {
  ModelSpec spec = *find_preset("qwen3-30b-a3b");
  spec.mixture.experts_per_token = 129;
  EXPECT_NE(mixture_error(spec).find("experts per token: expected 1 to 128, got 129"), std::string::npos);
  spec = *find_preset("qwen3-30b-a3b"), spec.mixture.layer_interval = 40, spec.mixture.first_layer = 40;
  EXPECT_NE(mixture_error(spec).find("none of the 48 layers"), std::string::npos);
  spec = *find_preset("llama3-8b"), spec.mixture = find_preset("mixtral-8x7b")->mixture;
  EXPECT_NE(mixture_error(spec).find("experts: expected 0 in llama, got 8"), std::string::npos);
  spec = *find_preset("deepseek-v3"), spec.latent.rope_dim = 192;
  EXPECT_NE(mixture_error(spec).find("latent attention"), std::string::npos);
}

TEST(Mixture, ProfilesShowBothKindsOfLayers) {
  const ModelProfile profile = profile_model(*find_preset("deepseek-v3"), 4096);
  ASSERT_EQ(profile.blocks.size(), 4u);
  std::int64_t parameters = 0;
  for (const BlockProfile& block : profile.blocks) parameters += block.count * block.parameters;
  EXPECT_EQ(parameters, profile.parameters);
  EXPECT_TRUE(profile.blocks[2].is_mixture);
  const OrderedJson json = to_json(profile);
  EXPECT_EQ(json["active_parameters"], profile.active_parameters);
  EXPECT_EQ(json["mixture"]["experts"], 256);
  EXPECT_NE(text(profile).find("58 of the layers are mixtures of 256 experts"), std::string::npos);
}

}  // namespace
}  // namespace optimus
