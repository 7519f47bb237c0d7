// Any plan loads what any other plan has saved, bit for bit: 30 random plans for 1 to 8 ranks each save one
// state, and other plans load it (random pairs; with OPTIMUS_LONG=1 all 870). Chains of plans pass the state
// on while growing and shrinking, and checkpoints of sharded plans are exported to Hugging Face folders.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/temporary_folder.h"
#include "checkpoint/convert.h"
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
    if (!unsupported_reason(plan, model)) return plan;
  }
}

constexpr std::array<at::Tensor BlockState::*, 3> kMembers = {&BlockState::masters, &BlockState::first_moment,
                                                              &BlockState::second_moment};

// The values of the state's elements in a box; exact in every type of masters and moments.
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
  value_or_throw(files.create_folders(run));
  const Path folder = value_or_throw(begin_checkpoint(files, run, step));
  const std::vector<std::vector<TensorBox>> boxes =
      boxes_to_save(layout_of(plan, model, StateKind::optimizer));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Saver saver({files, run, {}, {}}, plan, model, ranks[rank]);
    value_or_throw(saver.write_part(boxes[rank], folder, Rank{static_cast<int>(rank)}));
  }
  TrainingState state;
  state.step = step;
  CommitOptions options{
      static_cast<int>(ranks.size()),
      hf_description({.model = model, .type = ElementType::f32, .tokenizer = "", .origin = {}})};
  options.files.push_back({std::string(kTrainingStateFile), training_state_text(state)});
  value_or_throw(commit_checkpoint(files, folder, options));
  value_or_throw(apply_retention(files, run, {.keep_last = 1}));
}

// The ranks of a plan, filled with the expected state or from a checkpoint.
std::vector<Parameters> filled_ranks(const Plan& plan, const ModelSpec& model) {
  std::vector<Parameters> ranks;
  ranks.reserve(static_cast<std::size_t>(num_devices(plan)));
  for (int rank = 0; rank < num_devices(plan); ++rank)
    for_each_held(ranks.emplace_back(plan, model, rank, at::Device(at::kCPU)),
                  [](at::Tensor view, const at::Tensor& values, const std::string&) { view.copy_(values); });
  return ranks;
}

std::vector<Parameters> loaded_ranks(const Plan& plan, const ModelSpec& model, const Checkpoint& saved) {
  std::vector<Parameters> ranks;
  ranks.reserve(static_cast<std::size_t>(num_devices(plan)));
  for (int rank = 0; rank < num_devices(plan); ++rank)
    restore(saved, model, Restored::everything, ranks.emplace_back(plan, model, rank, at::Device(at::kCPU)));
  return ranks;
}

void expect_state(std::vector<Parameters>& ranks) {
  for (Parameters& own : ranks)
    for_each_held(own, [](const at::Tensor& view, const at::Tensor& values, const std::string& name) {
      EXPECT_TRUE(at::equal(view.to(at::kDouble), values)) << name;
    });
}

constexpr int kNumPlans = 30;
const std::vector<std::string>& families() {
  static const std::vector<std::string> presets = {"gpt2", "llama3-8b", "qwen3-0.6b", "bert-base"};
  return presets;
}

// A ring through all plans, so that each saves and loads at least once, and further random pairs.
std::vector<std::pair<std::size_t, std::size_t>> pairs_of_plans(bool are_all) {
  constexpr int kNumMore = 30;
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (std::size_t from = 0; from < kNumPlans; ++from)
    for (std::size_t to = 0; to < kNumPlans; ++to)
      if (from != to && (are_all || to == (from + 1) % kNumPlans)) pairs.emplace_back(from, to);
  for (int more = 0; more < kNumMore && !are_all; ++more)
    pairs.emplace_back(random_plan::pick(0, kNumPlans - 1), random_plan::pick(0, kNumPlans - 1));
  return pairs;
}

TEST(AnyPlanCheckpoint, AnyPlanLoadsAnySavedState) {
  const bool are_all = std::getenv("OPTIMUS_LONG") != nullptr;
  EXPECT_TRUE(holds("pairs of plans", 1, [&] {
    const TemporaryFolder folder;
    const ModelSpec model = model_of(*rc::gen::elementOf(families()), 4, 2, random_plan::pick(1, 4));
    std::vector<Plan> plans;
    const auto run_of = [&](std::size_t number) { return folder / std::to_string(number); };
    for (std::size_t number = 0; number < kNumPlans; ++number) {
      plans.push_back(any_plan(model));
      std::vector<Parameters> ranks = filled_ranks(plans.back(), model);
      save_as(plans.back(), model, ranks, run_of(number), 1);
    }
    for (const auto& [from, to] : pairs_of_plans(are_all)) {
      SCOPED_TRACE(to_json(plans[from]).dump() + " -> " + to_json(plans[to]).dump());
      std::vector<Parameters> ranks =
          loaded_ranks(plans[to], model, Checkpoint::open(find_checkpoint(run_of(from))));
      expect_state(ranks);
      if (testing::Test::HasFailure()) return;
    }
  }));
}

TEST(AnyPlanCheckpoint, StateSurvivesChainsOfPlans) {
  EXPECT_TRUE(holds("chains of plans", 1, [&] {
    const TemporaryFolder folder;
    const ModelSpec model = model_of(*rc::gen::elementOf(families()), 4, 2, random_plan::pick(1, 4));
    for (int number = 0; number < kNumPlans; ++number) {
      const Plan plan = any_plan(model);
      SCOPED_TRACE(to_json(plan).dump());
      std::vector<Parameters> ranks =
          number == 0 ? filled_ranks(plan, model)
                      : loaded_ranks(plan, model, Checkpoint::open(find_checkpoint(folder.path())));
      expect_state(ranks);
      if (testing::Test::HasFailure()) return;
      save_as(plan, model, ranks, folder.path(), number + 1);
    }
  }));
}

TEST(AnyPlanCheckpoint, ExportsFromShards) {
  EXPECT_TRUE(holds("exports", 6, [&] {
    const TemporaryFolder folder;
    const ModelSpec model = model_of(*rc::gen::elementOf(families()), 4, 2, random_plan::pick(1, 4));
    const Plan plan = any_plan(model);
    SCOPED_TRACE(to_json(plan).dump());
    std::vector<Parameters> ranks = filled_ranks(plan, model);
    save_as(plan, model, ranks, folder / "run", 1);
    RealFileSystem files;
    NullSink quiet;
    const auto saved = open_weights(find_checkpoint(folder / "run").string(), model, quiet);
    write_model_folder(files, folder / "hf",
                       {.model = model, .type = saved->type(), .tokenizer = "", .origin = {}}, *saved,
                       Bytes(4096), quiet);
    const auto exported = open_weights((folder / "hf").string(), model, quiet);
    const std::vector<LogicalTensor> tensors = logical_tensors(model);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const at::Tensor expected = expected_values(t, 0, tensors[t].shape, Box(tensors[t].shape)).contiguous();
      std::vector<double> values(static_cast<std::size_t>(expected.numel()));
      exported->read(tensors[t], std::span<double>(values));
      EXPECT_TRUE(std::equal(values.begin(), values.end(), expected.const_data_ptr<double>()))
          << tensors[t].name;
    }
  }));
}

}  // namespace
}  // namespace optimus
