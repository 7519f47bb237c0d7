// FLOPs compared with closed formulas, saved activations compared with lists made by hand.
#include "model/operations.h"

#include <gtest/gtest.h>

#include "model/presets.h"
#include "model/random_spec.h"

namespace optimus {
namespace {

double d(std::int64_t number) { return static_cast<double>(number); }

double forward_flops(const ModelSpec& spec, std::int64_t length) {
  const auto of_block = [&](BlockKind kind) {
    double total = 0;
    for (const Operation& operation : operations(spec, kind, length)) total += operation.forward_flops;
    return total;
  };
  return of_block(BlockKind::embedding) + d(spec.layers) * of_block(BlockKind::layer) +
         of_block(BlockKind::head);
}

// Parameters that a token is multiplied with: all matrices except the look-up tables, plus the word embedding
// once as output projection.
double gemm_parameters(const ModelSpec& spec) {
  double total = d(spec.vocab) * d(spec.hidden);
  for (const LogicalTensor& tensor : logical_tensors(spec)) {
    const bool is_table = tensor.block == 0 || tensor.name == "head.output.weight";
    if (tensor.shape.num_dims == 2 && !is_table) total += d(tensor.shape.num_elements());
  }
  return total;
}

TEST(Operations, ModelFlopsAreSixPerParameterAndFullAttention) {
  for (std::uint64_t seed = 0; seed < 350; ++seed) {
    const ModelSpec spec = random_spec(seed);
    const std::int64_t length = 1 + static_cast<std::int64_t>(seed % 50);
    const double attention = 12 * d(spec.layers) * d(spec.query_width()) * d(length);
    EXPECT_DOUBLE_EQ(model_flops_per_token(spec, length), 6 * gemm_parameters(spec) + attention) << seed;
  }
}

TEST(Operations, ThreeTimesForwardMatchesModelFlops) {
  for (std::uint64_t seed = 0; seed < 350; ++seed) {
    const ModelSpec spec = random_spec(seed);
    const std::int64_t length = 1 + static_cast<std::int64_t>(seed % 50);
    const double unseen = spec.is_causal ? 6 * d(spec.layers) * d(spec.query_width()) * d(length - 1) : 0;
    EXPECT_NEAR(3 * forward_flops(spec, length) + unseen, model_flops_per_token(spec, length), 1e-3) << seed;
  }
}

TEST(Operations, KnownModels) {
  // 6 * (8,030,261,248 - word embedding - norms) + 12 * 32 * 4096 * 8192
  const double products = 8030261248.0 - 128256.0 * 4096 - 65 * 4096.0;
  EXPECT_DOUBLE_EQ(model_flops_per_token(*find_preset("llama3-8b"), 8192),
                   6 * products + 12.0 * 32 * 4096 * 8192);
}

TEST(Operations, BackwardIsTwiceForward) {
  for (std::uint64_t seed = 0; seed < 100; ++seed)
    for (const BlockKind kind : {BlockKind::embedding, BlockKind::layer, BlockKind::head})
      for (const Operation& operation : operations(random_spec(seed), kind, 16)) {
        EXPECT_DOUBLE_EQ(operation.backward_flops, 2 * operation.forward_flops) << operation.name;
        EXPECT_GT(operation.accessed_elements, 0) << operation.name;
        const bool is_gemm = operation.kind == OperationKind::gemm;
        EXPECT_EQ(operation.inner > 0, is_gemm);
        const double gemm = 2 * d(operation.inner) * d(operation.outer);
        EXPECT_TRUE(!is_gemm || operation.forward_flops == gemm);
      }
}

// Every matrix of a layer or head is the weight of exactly one GEMM with the same cut.
TEST(Operations, GemmsMatchMatricesOneToOne) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const ModelSpec spec = random_spec(seed);
    std::vector<std::string> expected, found;
    for (const LogicalTensor& tensor : logical_tensors(spec, 1))
      if (tensor.shape.num_dims == 2)
        expected.push_back(fmt::format("{} {} {} {}", tensor.name, tensor.shape[1], tensor.shape[0],
                                       static_cast<int>(tensor.split.unit)));
    for (const Operation& operation : operations(spec, BlockKind::layer, 8))
      if (operation.kind == OperationKind::gemm)
        found.push_back(fmt::format("layers.0.{}.weight {} {} {}", operation.name, operation.inner,
                                    operation.outer, static_cast<int>(operation.split)));
    EXPECT_EQ(found, expected) << seed;
  }
}

TEST(Operations, SavedTensorsOfGpt2Layer) {
  const ModelSpec spec = *find_preset("gpt2");
  const double h = 768, heads = 12;
  const auto saved = [&](RecomputeMode mode, int bytes) {
    return saved_bytes_per_token(spec, BlockKind::layer, 1024, mode, bytes);
  };
  // Two norms (input, output, mean and deviation), q, k, v, the attention output and its logsumexp per head,
  // input and output of gelu.
  EXPECT_DOUBLE_EQ(saved(RecomputeMode::none, 2), 2 * (2 * h + 2 * h + 3 * h + h + 8 * h) + 4 * (4 + heads));
  EXPECT_DOUBLE_EQ(saved(RecomputeMode::selective, 2), 2 * (2 * h + 3 * h + h + 4 * h) + 4 * (4 + heads));
  EXPECT_DOUBLE_EQ(saved(RecomputeMode::full, 2), 2 * h);
  EXPECT_DOUBLE_EQ(saved(RecomputeMode::full, 4), 4 * h);
}

TEST(Operations, SavedTensorsOfLlamaLayer) {
  const ModelSpec spec = *find_preset("llama3-8b");
  const double h = 4096, kv = 1024, ffn = 14336, heads = 32;
  const auto saved = [&](RecomputeMode mode) {
    return saved_bytes_per_token(spec, BlockKind::layer, 8192, mode, 2);
  };
  EXPECT_DOUBLE_EQ(saved(RecomputeMode::none), 2 * (4 * h + h + 2 * kv + h + 3 * ffn) + 4 * (2 + heads));
  EXPECT_DOUBLE_EQ(saved(RecomputeMode::selective), 2 * (2 * h + h + 2 * kv + h + 2 * ffn) + 4 * (2 + heads));
  EXPECT_DOUBLE_EQ(saved(RecomputeMode::full), 2 * h);
}

TEST(Operations, LogitsAreNeverSaved) {
  const ModelSpec spec = *find_preset("llama3-8b");
  const auto saved = [&](BlockKind kind, RecomputeMode mode) {
    return saved_bytes_per_token(spec, kind, 8192, mode, 2);
  };
  EXPECT_DOUBLE_EQ(saved(BlockKind::embedding, RecomputeMode::none), 8);
  EXPECT_DOUBLE_EQ(saved(BlockKind::head, RecomputeMode::none), 2 * 2 * 4096 + 4 + 8 + 4);
  // The gradient of the loss is available at the end of the forward, so nothing is recomputed.
  EXPECT_DOUBLE_EQ(saved(BlockKind::head, RecomputeMode::full), saved(BlockKind::head, RecomputeMode::none));
}

TEST(Operations, StrongerModesSaveLess) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const ModelSpec spec = random_spec(seed);
    for (const BlockKind kind : {BlockKind::embedding, BlockKind::layer, BlockKind::head}) {
      const auto saved = [&](RecomputeMode mode) { return saved_bytes_per_token(spec, kind, 8, mode, 2); };
      EXPECT_GE(saved(RecomputeMode::none), saved(RecomputeMode::selective));
      EXPECT_GE(saved(RecomputeMode::selective), saved(RecomputeMode::full));
    }
    // Post-norms also save two statistics, because their output is computed only once.
    const double statistics = spec.norm_position == NormPosition::post ? 8 : 0;
    EXPECT_DOUBLE_EQ(saved_bytes_per_token(spec, BlockKind::layer, 8, RecomputeMode::full, 2),
                     2 * d(spec.hidden) + statistics);
  }
}

}  // namespace
}  // namespace optimus
