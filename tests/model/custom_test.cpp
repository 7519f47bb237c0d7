// Models of custom blocks: the properties derived from their numbers.
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/custom_model.h"
#include "model/operations.h"

namespace optimus {
namespace {

TEST(CustomModel, ConsistsOfItsBlocks) {
  const ModelSpec spec = custom_model();
  validate(spec);
  EXPECT_EQ(num_blocks(spec), 3);
  EXPECT_EQ(block_kind(spec, 1), BlockKind::custom);
  EXPECT_EQ(num_patterns(spec), 3);
  EXPECT_EQ(num_parameters(spec), 4 * 3 * 2 * 2 + 4 + 10 * 20);
  const std::vector<LogicalTensor> tensors = logical_tensors(spec);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[2].name, "c.weight");
  EXPECT_EQ(tensors[2].block, 2);
  EXPECT_EQ(tensors[1].init.kind, InitKind::custom);
  EXPECT_FALSE(tensors[1].has_weight_decay);
  EXPECT_EQ(output_width(spec, 0), 40);
  EXPECT_EQ(input_name(spec, 1), "input");
  EXPECT_EQ(operations(spec, 1, 1).at(0).saved.at(0).elements_per_token, 40);
  EXPECT_EQ(gradients(spec, 0).at(0).elements_per_token, 40);
  EXPECT_TRUE(gradients(spec, 2).empty());
  EXPECT_EQ(model_flops_per_token(spec, 1), 3 * (1000 + 0 + 400));
}

std::string custom_model_error(ModelSpec spec) {
  try {
    validate(spec);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(CustomModel, RejectsInconsistentBlocks) {
  const auto changed = [](auto change) {
    ModelSpec spec = custom_model();
    change(spec);
    return custom_model_error(spec);
  };
  using Spec = ModelSpec&;
  EXPECT_EQ(changed([](Spec) {}), "");
  EXPECT_NE(changed([](Spec s) { s.is_tied = true; }).find("tied embeddings cannot be set"),
            std::string::npos);
  EXPECT_NE(changed([](Spec s) { s.custom[1].name = "a"; }).find("unique name"), std::string::npos);
  EXPECT_NE(changed([](Spec s) {
              s.custom[1].inputs = 39;
            }).find("inputs per sample: expected 40 (the outputs of the preceding block), got 39"),
            std::string::npos);
  EXPECT_NE(changed([](Spec s) { s.custom[2].outputs = 1; }).find("computes the loss"), std::string::npos);
  EXPECT_NE(changed([](Spec s) {
              s.custom[2].tensors[0].name = "a.weight";
            }).find("expected a unique parameter name, got 'a.weight'"),
            std::string::npos);
  EXPECT_NE(changed([](Spec s) { s.custom[2].tensors[0].shape[0] = -1; }).find("expected 1 to"),
            std::string::npos);
  EXPECT_NE(changed([](Spec s) {
              s.custom[2].tensors[0].shape = {1 << 30, 1 << 30};
            }).find("supported maximum"),
            std::string::npos);
}

}  // namespace
}  // namespace optimus
