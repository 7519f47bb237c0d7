// Gathering shards in fp8: the result equals the whole weights rounded to fp8, and the maxima are those of
// the whole weights.
#include "engine/fp8_shards.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include "engine/fp8_gemm.h"
#include "engine/fp8_training.h"

namespace optimus {
namespace {

TEST(Fp8Shards, GatherMatchesRoundedWeights) {
  const ModelSpec model = model_of("llama3-8b", 4, 2, 3);
  for (const int dp : {2, 3}) {  // three: rows that do not divide evenly
    UniformPlan shape{.dp = dp, .microbatch = 1, .batch = 2 * dp, .sequence_length = kLength};
    shape.strategy.zero = 3, shape.precision = Precision::fp64;
    const Plan plan = in_fp8(uniform_plan(model, shape));
    constexpr int kBlock = 2;
    const at::Device host(at::kCPU);
    const std::unique_ptr<Kernels> kernels = make_plain_kernels();
    at::Tensor all, whole, largest;
    std::vector<at::Tensor> own;
    for (int rank = 0; rank < dp; ++rank) {
      Parameters parameters(plan, model, rank, host);
      parameters.initialize(7);
      const BlockShape& block = parameters.shape(kBlock);
      Fp8Scales scales(plan, host);
      scales.set_history({{std::vector<float>(static_cast<std::size_t>(num_fp8_slots(plan)), 0.06f)}});
      scales.begin_step(/*is_training=*/true);
      const Fp8Shards narrow(block, kBlock - 1, at::kDouble);
      EXPECT_LT(narrow.bytes(), block.shard_elements * 2) << "matrices are most of a layer";
      if (rank == 0) all = at::zeros({dp * narrow.bytes()}, at::kByte), largest = scales.maxima().clone();
      narrow.pack(parameters.block(kBlock).weights, scales, *kernels,
                  all.narrow(0, rank * narrow.bytes(), narrow.bytes()));
      largest = at::maximum(largest, scales.maxima());
      if (rank + 1 < dp) continue;
      whole = at::zeros({block.whole_elements}, at::kDouble);
      narrow.unpack(all, scales, whole);
      const BlockViews views = parameters.views(kBlock, whole, {});
      Plan alone = one_device(model, plan.batch);
      Parameters expected(alone, model, 0, host);
      expected.initialize(7);
      const BlockViews exact = expected.views(kBlock, expected.block(kBlock).weights, {});
      const int slot = fp8_slot(kBlock - 1, LayerGemm::up, Fp8Operand::weight);
      const at::Tensor up = exact["mlp.gate_up.weight"].weight;
      EXPECT_TRUE(views["mlp.gate_up.weight"].weight.equal(
          rounded_to_fp8(up, Fp8Operand::weight, scales.scale(slot), scales.inverse(slot))));
      EXPECT_FALSE(views["mlp.gate_up.weight"].weight.equal(up));
      EXPECT_TRUE(views["norm1.weight"].weight.equal(exact["norm1.weight"].weight));
      EXPECT_EQ(largest[slot].item<float>(), up.abs().max().item<float>());
    }
  }
}

}  // namespace
}  // namespace optimus
