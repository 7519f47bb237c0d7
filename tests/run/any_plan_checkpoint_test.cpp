// Any plan loads what any plan saved: ranks of random plans for worlds of 1 to 8 hand one state on, each saving what the one before has
// loaded, growing and shrinking; at every one the state is what it was at first, bit for bit.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/temporary_folder.h"
#include "engine/equal_training.h"
#include "layout/property.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "plan/random_plan.h"
#include "run/saver.h"

namespace optimus {
namespace {

Plan any_plan(const ModelSpec& model) {
  for (;;) {
    Plan plan = random_plan::plan_for(
        model, {.most_stages = 3, .most_width = 4, .most_pipelines = 2, .most_microbatches = 3});
    if (is_asynchronous(plan.schedule) || num_devices(plan) > 8) continue;
    plan.sequence_length = kLength;
    plan.precision = *rc::gen::element(Precision::fp64, Precision::fp32, Precision::bf16);
    plan.accumulators = plan.precision == Precision::fp64 ? Precision::fp64 : Precision::fp32;
    try {
      ensure_engine_supports(plan, model);
      return plan;
    } catch (const UserError&) {  // another one, then
    }
  }
}

constexpr std::array<at::Tensor BlockState::*, 3> kMembers = {&BlockState::masters, &BlockState::first,
                                                              &BlockState::second};

// Of the state's elements that a rank holds; exact in every type that masters and moments have.
at::Tensor expected_values(std::size_t tensor, std::size_t member, const Shape& shape, const Box& box) {
  at::Tensor values = at::arange(shape.num_elements(), at::kDouble) * static_cast<double>(member + 1) +
                      static_cast<double>(1000 * tensor);
  std::vector<std::int64_t> sizes;
  for (int d = 0; d < shape.num_dims; ++d) sizes.push_back(shape[d]);
  values = values.view(sizes);
  for (int d = 0; d < box.num_dims; ++d) values = values.narrow(d, box[d].begin, box[d].size());
  return values;
}

template <typename Function>
void for_each_held(Parameters& parameters, Function function) {
  for (std::size_t t = 0; t < parameters.tensors().size(); ++t)
    for (std::size_t m = 0; m < kMembers.size(); ++m) {
      const LogicalTensor& tensor = parameters.tensors()[t];
      at::Tensor view = parameters.view(tensor.name, kMembers[m]);
      if (!view.defined() || view.numel() == 0) continue;
      function(view, expected_values(t, m, tensor.shape, parameters.box(tensor.name, kMembers[m])),
               tensor.name);
    }
}

void save_as(const Plan& plan, const ModelSpec& model, std::vector<Parameters>& ranks, const Path& run,
             std::int64_t step) {
  RealFileSystem files;
  const Path folder = value_or_throw(begin_checkpoint(files, run, step));
  const std::vector<std::vector<HeldBox>> boxes =
      boxes_to_store(layout_of(plan, model, StateKind::optimizer));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Saver saver({files, run, {}, {}}, plan, model, ranks[rank]);
    value_or_throw(saver.write_part(boxes[rank], folder, Rank{static_cast<int>(rank)}));
  }
  TrainingState state;
  state.step = step;
  value_or_throw(commit_checkpoint(
      files, folder,
      {static_cast<int>(ranks.size()), {{std::string(kTrainingStateFile), training_state_text(state)}}}));
  value_or_throw(apply_retention(files, run, {.keep_last = 1}));
}

TEST(AnyPlanCheckpoint, GoesFromPlanToPlan) {
  const std::vector<std::string> presets = {"gpt2", "llama3-8b", "qwen3-0.6b", "bert-base"};
  EXPECT_TRUE(holds("chains of plans", 1, [&] {
    const TemporaryFolder folder;
    const ModelSpec model = model_of(*rc::gen::elementOf(presets), 4, 2, random_plan::pick(1, 4));
    for (int number = 0; number < 30; ++number) {
      const Plan plan = any_plan(model);
      SCOPED_TRACE(to_json(plan).dump());
      std::vector<Parameters> ranks;
      ranks.reserve(static_cast<std::size_t>(num_devices(plan)));
      for (int rank = 0; rank < num_devices(plan); ++rank) {
        Parameters& own = ranks.emplace_back(plan, model, rank, at::Device(at::kCPU));
        if (number == 0) {
          for_each_held(
              own, [](at::Tensor view, const at::Tensor& values, const std::string&) { view.copy_(values); });
          continue;
        }
        const Checkpoint saved = Checkpoint::open(find_checkpoint(folder.path()));
        ASSERT_EQ(saved.step(), number);
        restore(saved, model, Restored::everything, own);
        for_each_held(own, [](const at::Tensor& view, const at::Tensor& values, const std::string& name) {
          EXPECT_TRUE(at::equal(view.to(at::kDouble), values)) << name;
        });
      }
      if (testing::Test::HasFailure()) return;
      save_as(plan, model, ranks, folder.path(), number + 1);
    }
  }));
}

}  // namespace
}  // namespace optimus
