#include "schedule/sizes.h"

#include <gtest/gtest.h>

#include "model/presets.h"
#include "model/tensors.h"

namespace optimus {
namespace {

// With GPT-2's vocabulary of 50,257 no row is a multiple of 16 bytes, and neither is half a row.
TEST(DeviceSizes, LogitRowsArePaddedTo128Bytes) {
  const ModelSpec model = *find_preset("gpt2");
  const auto columns = [&](Precision precision, int tp, int device) {
    UniformPlan shape{.microbatch = 1, .batch = 1, .sequence_length = 64};
    shape.strategy.tp = tp;
    Plan plan = uniform_plan(model, shape);
    plan.precision = precision;
    return DeviceSizes(plan, model, location_of(plan, device))
        .logits(num_blocks(model) - 1, 1)
        .places.at(0)
        .columns;
  };
  EXPECT_EQ(columns(Precision::bf16, 1, 0), 50'304);
  EXPECT_EQ(columns(Precision::fp32, 1, 0), 50'272);
  for (const int device : {0, 1}) {
    const std::int64_t half = columns(Precision::bf16, 2, device);
    EXPECT_EQ(half % 64, 0);
    EXPECT_GE(half, 50'257 / 2);
    EXPECT_LT(half, 50'257 / 2 + 65);
  }
}

}  // namespace
}  // namespace optimus
