// Layers that are recomputed together: the saved inputs, the order of the work, and the saved memory.
#include <gtest/gtest.h>

#include "model/open.h"
#include "model/presets.h"
#include "schedule/program.h"
#include "schedule/sizes.h"

namespace optimus {
namespace {

ModelSpec model_of(std::int64_t layers) {
  return with_overrides(open_model("gpt2"),
                        {.layers = layers, .hidden = 64, .heads = 4, .vocab = 100, .max_positions = 32});
}

Plan plan_of(const ModelSpec& model, int recompute_layers) {
  return uniform_plan(model,
                      {.strategy = {.recompute = RecomputeMode::full, .recompute_layers = recompute_layers},
                       .microbatch = 2,
                       .batch = 2,
                       .sequence_length = 32,
                       .precision = Precision::fp32});
}

TEST(Recompute, RecomputesGroupFromFirstInput) {
  const ModelSpec model = model_of(5);
  std::vector<std::string> work;
  for (const Instruction& at : compile(plan_of(model, 2), model, 0).instructions)
    if (at.part == Part::mlp && (at.op == Op::recompute || at.op == Op::backward_input))
      work.push_back(text(at.op) + " " + std::to_string(at.block));
  // Layers are blocks 1 to 5; the last group has one layer.
  EXPECT_EQ(work, (std::vector<std::string>{"recompute 5", "backward_input 5", "recompute 3", "recompute 4",
                                            "backward_input 4", "backward_input 3", "recompute 1",
                                            "recompute 2", "backward_input 2", "backward_input 1"}));
}

TEST(Recompute, InnerInputsOfGroupEndWithForward) {
  const ModelSpec model = model_of(6);
  const Program program = compile(plan_of(model, 3), model, 0);
  std::vector<Span> lives(program.buffers.size(), Span{-1, -1});
  std::int64_t last_forward = 0;
  for (std::int64_t i = 0; i < std::ssize(program.instructions); ++i) {
    const Instruction& at = program.instructions[static_cast<std::size_t>(i)];
    if (at.op == Op::forward) last_forward = i;
    for (const Use& use : program.uses(at)) {
      Span& life = lives[static_cast<std::size_t>(use.buffer)];
      if (life.begin < 0) life.begin = i;
      life.end = i;
    }
  }
  std::vector<int> saved;  // at the transition from forward to backward
  for (std::size_t b = 0; b < lives.size(); ++b)
    if (program.buffers[b].kind == BufferKind::saved_activations && lives[b].begin < last_forward &&
        lives[b].end > last_forward)
      saved.push_back(program.buffers[b].block);
  std::sort(saved.begin(), saved.end());
  EXPECT_EQ(saved, (std::vector<int>{0, 1, 4, 7}));  // embedding, two layers, head
}

// Compares the rule's memory with the best group size. The rule ignores gradients and logits and rounds, so
// it may be a few percent worse. For deep models it must be better than recomputing one layer at a time.
TEST(Recompute, GroupSizeRuleIsNearlyOptimal) {
  for (const std::int64_t layers : {1, 4, 12, 48, 200}) {
    const ModelSpec model = model_of(layers);
    const auto memory = [&](int size) {
      return plan_arena(compile(plan_of(model, size), model, 0)).bytes.value;
    };
    const int chosen = best_recompute_group_size(plan_of(model, 1), model);
    std::int64_t least = memory(1);
    for (int size = 2; size <= std::min<int>(static_cast<int>(layers), 16); ++size)
      least = std::min(least, memory(size));
    EXPECT_LE(static_cast<double>(memory(chosen)), 1.05 * static_cast<double>(least))
        << layers << " layers in groups of " << chosen;
    if (layers == 200) {
      // 200 inputs versus 2 √(200 x 11) ≈ 94 inputs (a layer has about 11 inputs), plus gradients and logits
      // in both cases.
      EXPECT_LT(3 * memory(chosen), 2 * memory(1));
    }
  }
}

}  // namespace
}  // namespace optimus
