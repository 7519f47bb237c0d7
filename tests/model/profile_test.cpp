// The profile is the sum of its blocks, as JSON and as text.
#include "model/profile.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/presets.h"
#include "model/random_spec.h"

namespace optimus {
namespace {

TEST(Profile, BlocksSumToTheModel) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const ModelSpec spec = random_spec(seed);
    const ModelProfile profile = profile_model(spec, 1);
    std::int64_t parameters = 0;
    for (const BlockProfile& block : profile.blocks) parameters += block.count * block.parameters;
    EXPECT_EQ(parameters, profile.parameters);
    EXPECT_EQ(parameters, num_parameters(spec));
  }
}

TEST(Profile, JsonHasDocumentedKeys) {
  const OrderedJson json = to_json(profile_model(*find_preset("llama3-8b"), 8192));
  EXPECT_EQ(json["parameters"], 8030261248);
  EXPECT_EQ(json["layers"], 32);
  EXPECT_DOUBLE_EQ(json["flops_per_token"].get<double>(),
                   model_flops_per_token(*find_preset("llama3-8b"), 8192));
  EXPECT_EQ(json["state_bytes"]["bf16"]["total"], 18 * 8030261248);
  EXPECT_EQ(json["state_bytes"]["fp32"]["total"], 16 * 8030261248);
  EXPECT_EQ(json["blocks"].size(), 3U);
  EXPECT_EQ(json["pipeline"]["most_stages"], 34);
  EXPECT_EQ(json["dimensions"]["kv_heads"], 8);
}

TEST(Profile, TensorParallelDividesNearlyAllOfALayer) {
  const ModelProfile profile = profile_model(*find_preset("llama3-70b"), 8192);
  const BlockProfile& layer = profile.blocks[1];
  EXPECT_EQ(layer.split_flops_fraction, 1);
  EXPECT_GT(layer.split_parameter_fraction, 0.999);
  EXPECT_LT(layer.split_parameter_fraction, 1);
  EXPECT_GT(layer.split_saved_fraction, 0.7);
  EXPECT_LT(layer.split_saved_fraction, 0.95);
  EXPECT_EQ(layer.max_parts, 64);
  // the transform is not cut
  EXPECT_LT(profile_model(*find_preset("bert-base"), 512).blocks[2].split_flops_fraction, 1);
}

TEST(Profile, FormatsTable) {
  const std::string table = text(profile_model(*find_preset("gpt2"), 1024));
  EXPECT_NE(
      table.find("gpt2 (gpt2): 12 layers, hidden 768, 12 heads of 64, ffn 3072, vocabulary 50257, tied"),
      std::string::npos)
      << table;
  EXPECT_NE(table.find("124,439,808"), std::string::npos);
  EXPECT_NE(table.find("2.09 GiB"), std::string::npos) << table;
}

TEST(Profile, RejectsSequencesBeyondLearnedPositions) {
  EXPECT_THROW(profile_model(*find_preset("gpt2"), 1025), UserError);
  EXPECT_THROW(profile_model(*find_preset("gpt2"), 0), UserError);
  EXPECT_NO_THROW(profile_model(*find_preset("llama3-8b"), 100000));
  EXPECT_EQ(default_sequence_length(*find_preset("gpt2")), 1024);
  EXPECT_EQ(default_sequence_length(*find_preset("llama3.1-8b")), 8192);
}

}  // namespace
}  // namespace optimus
