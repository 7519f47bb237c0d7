// What a switch moves, bit for bit: masters and moments with a distinct value for each element, from any plan
// to any other in every precision; the resulting weights; peak memory; refusals.
#include "switching/move.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <rapidcheck.h>

#include <array>
#include <mutex>

#include "base/error.h"
#include "engine/tracking_allocator.h"
#include "layout/property.h"
#include "plan/plan_json.h"
#include "reshard/random_plans.h"
#include "switching/plan_switch.h"

namespace optimus {
namespace {

constexpr std::array kFields = {&BlockState::masters, &BlockState::first_moment, &BlockState::second_moment};

// The value of an element of a tensor's field: small integers and halves, which every type can represent.
at::Tensor expected(const Parameters& parameters, int tensor, std::size_t field, const Box& box) {
  const Shape& shape = parameters.tensors()[static_cast<std::size_t>(tensor)].shape;
  std::vector<std::int64_t> sizes;
  for (int d = 0; d < shape.num_dims; ++d) sizes.push_back(shape[d]);
  at::Tensor all = at::arange(shape.num_elements(), at::kDouble).remainder(97 + tensor);
  all = all.add(static_cast<double>(field) / 2).view(sizes);
  for (int d = 0; d < box.num_dims; ++d) all = all.narrow(d, box[d].begin, box[d].size());
  return all;
}

void fill_state(Parameters& parameters) {
  if (parameters.copies() != nullptr) fill_state(*parameters.copies());
  for (int t = 0; t < static_cast<int>(parameters.tensors().size()); ++t)
    for (std::size_t f = 0; f < kFields.size(); ++f) {
      const std::string& name = parameters.tensors()[static_cast<std::size_t>(t)].name;
      at::Tensor view = parameters.view(name, kFields[f]);
      if (view.defined()) view.copy_(expected(parameters, t, f, parameters.box(name, kFields[f])));
    }
}

// The state after a step whose updates were not gathered: masters are correct where moments are, and wrong
// elsewhere.
void spoil_masters_of_others(Parameters& parameters) {
  for (int t = 0; t < static_cast<int>(parameters.tensors().size()); ++t) {
    const std::string& name = parameters.tensors()[static_cast<std::size_t>(t)].name;
    at::Tensor masters = parameters.view(name, &BlockState::masters);
    if (!masters.defined()) continue;
    masters.fill_(-1);
    for (const Parameters* const of : {&parameters, parameters.copies()}) {
      if (of == nullptr || !of->view(name, &BlockState::first_moment).defined()) continue;
      const Box box = of->box(name, &BlockState::first_moment),
                all = parameters.box(name, &BlockState::masters);
      if (all.contains(box)) sub_view(masters, all, box).copy_(expected(parameters, t, 0, box));
    }
  }
}

// The first difference; empty: there is none. Redundant copies do not have all fields.
std::string difference_in(const Parameters& parameters, bool is_copy = false) {
  if (parameters.copies() != nullptr)
    if (const std::string difference = difference_in(*parameters.copies(), true); !difference.empty())
      return "copies of " + difference;
  for (int t = 0; t < static_cast<int>(parameters.tensors().size()); ++t) {
    const std::string& name = parameters.tensors()[static_cast<std::size_t>(t)].name;
    if (parameters.find(name) == nullptr) continue;
    const auto is_right = [&](at::Tensor BlockState::*member, std::size_t field) {
      const at::Tensor view = parameters.view(name, member);
      if (is_copy && !view.defined()) return true;
      return at::equal(view.to(at::kCPU).to(at::kDouble),
                       expected(parameters, t, field, parameters.box(name, member)));
    };
    for (std::size_t f = 0; f < kFields.size(); ++f)
      if (!is_right(kFields[f], f)) return fmt::format("{} field {}", name, f);
    if (!is_right(&BlockState::weights, 0)) return name + " weights";
  }
  return "";
}

struct Moved {
  std::vector<std::string> problems;
  std::vector<SwitchReport> reports;
  std::int64_t bound = 0;  // the sum of the limits of all ranks
};

constexpr Bytes kUnderWay{1 << 16};

// Moves through the plans without training; without checking the values, which takes memory.
enum class ValueCheck { at_values, away };

// Sends state early if memory allows, in small messages. Simulates a step whose gradient was not finite: it
// changes nothing, but gradients are sent between ranks as usual.
void start_precopy(PlanSwitch& next, PlanPart& part, Comm& comm) {
  throw_if_failed(next.prepare(Deadline::after(Seconds(60), "preparing")));
  const PrecopyTerms terms = agree_on_precopy(comm, &next, part, Seconds(60));
  if (terms.num_waves == 0) return;
  next.begin_precopy(terms, part);
  std::this_thread::sleep_for(std::chrono::milliseconds(1 + part.plan.pipelines.size()));
  EXPECT_EQ(next.end_precopy(part), "");
  if (!part.is_empty()) ++part.engine->num_updates;
}

struct Early {
  PrecopyMode when = PrecopyMode::never;
  Bytes spare{};
};
Moved move_through(const ModelSpec& model, const std::vector<Plan>& plans, ValueCheck value_check,
                   Early early = {}, MasterCopies copies = MasterCopies::all) {
  Moved all;
  std::mutex mutex;
  const std::vector<std::string> problems = on_all_ranks([&](Comm& comm) {
    const int rank = comm.rank();
    EngineOptions options{.device = test_device(), .timeout = Seconds(60)};
    const SwitchContext facts{model,
                              comm,
                              options,
                              {.timeout = Seconds(60),
                               .is_checked = value_check == ValueCheck::at_values,
                               .retains_old = copies == MasterCopies::owned,
                               .max_combined = Bytes(512),
                               .max_in_flight = kUnderWay,
                               .early = early.when,
                               .spare = early.spare,
                               .precopy_message = Bytes(4096)}};
    const Group all_ranks{Role::world, {}};
    throw_if_failed(comm.connect(0, {&all_ranks, 1}, Deadline::after(Seconds(60), "connecting")));
    PlanPart part{.plan = plans[0]};
    options.rank = rank, options.comm = &comm;
    if (has_device(plans[0], rank)) {
      part.parameters = std::make_unique<Parameters>(plans[0], model, rank, test_device());
      if (value_check == ValueCheck::at_values) fill_state(*part.parameters);
      part.engine = std::make_unique<Engine>(plans[0], model, *part.parameters, options);
    }
    const auto bytes = [&] {
      return part.is_empty() ? Bytes(0) : part.parameters->bytes() + part.engine->bytes();
    };
    for (std::size_t p = 1; p < plans.size(); ++p) {
      const int epoch = static_cast<int>(p);
      if (copies == MasterCopies::owned) {  // as after a loss of ranks: in a generation of its own
        if (!part.is_empty()) spoil_masters_of_others(*part.parameters);
        comm.change_membership({epoch, {0, 1, 2, 3, 4, 5}});
      }
      const AvailableRanks there{.num_ranks = kNumRanks, .num_staying = kNumRanks, .copies = copies};
      const auto owned = copies == MasterCopies::owned
                             ? std::make_unique<PlanSwitch>(facts, part, plans[p], there)
                             : value_or_throw(PlanSwitch::create(facts, part, plans[p], epoch));
      PlanSwitch& next = *owned;
      const Bytes before = bytes();
      if (early.when != PrecopyMode::never) start_precopy(next, part, comm);
      const SwitchReport report = next.run(part);
      std::string difference;
      if (value_check == ValueCheck::at_values && !part.is_empty())
        difference = difference_in(*part.parameters);
      const std::lock_guard lock(mutex);
      all.bound += std::max(before, bytes()).value;
      if (rank == 0) all.reports.push_back(report);
      if (!difference.empty())
        all.problems.push_back(fmt::format("rank {}, plan {}: {}", rank, p, difference));
    }
  });
  all.problems.insert(all.problems.end(), problems.begin(), problems.end());
  return all;
}

TEST(Move, EveryElementBitForBitInEveryPrecision) {
  EXPECT_TRUE(holds("moves", 40, [] {
    if (testing::Test::HasFailure()) return;
    const std::string preset = *rc::gen::element<std::string>("gpt2", "llama3-8b", "qwen3-0.6b", "bert-base");
    const Precision precision =
        *rc::gen::element(Precision::bf16, Precision::fp16, Precision::fp32, Precision::fp64);
    const int kv_heads = random_plan::pick(1, 3), layers = random_plan::pick(1, 5);
    const ModelSpec model = model_of(preset, kv_heads * random_plan::pick(2, 3), kv_heads, layers);
    std::vector<Plan> plans;
    for (int i = 0; i < 3; ++i) plans.push_back(random_plan_for(model, precision));
    std::string trace = preset;
    for (const Plan& plan : plans) trace += "\n" + to_json(plan).dump();
    SCOPED_TRACE(trace);
    const Early early{*rc::gen::element(PrecopyMode::never, PrecopyMode::always), Bytes(1 << 24)};
    const Moved moved = move_through(model, plans, ValueCheck::at_values, early);
    ASSERT_TRUE(moved.problems.empty()) << moved.problems.front();
    for (const SwitchReport& report : moved.reports) EXPECT_EQ(report.moved, report.minimum);
  }));
}

TEST(Move, MastersAreAuthoritativeWhereMomentsAre) {
  EXPECT_TRUE(holds("moves", 40, [] {
    if (testing::Test::HasFailure()) return;
    const std::string preset = *rc::gen::element<std::string>("gpt2", "llama3-8b");
    const Precision precision = *rc::gen::element(Precision::bf16, Precision::fp32, Precision::fp64);
    const ModelSpec model = model_of(preset, 4, 2, random_plan::pick(1, 5));
    std::vector<Plan> plans;
    for (int i = 0; i < 3; ++i) plans.push_back(random_plan_for(model, precision));
    std::string trace = preset;
    for (const Plan& plan : plans) trace += "\n" + to_json(plan).dump();
    SCOPED_TRACE(trace);
    const Moved moved = move_through(model, plans, ValueCheck::at_values, {}, MasterCopies::owned);
    ASSERT_TRUE(moved.problems.empty()) << moved.problems.front();
  }));
}

// All ranks are threads of this process, so the sum of their limits bounds the memory of all. In addition
// each may have copies of messages, up to the limit or one larger message of at most one tensor; and tables
// in addition to the arena, for which parallel_memory_test allows one percent. Early state may use what a
// rank's new plan needs more than its old one, and spare memory.
TEST(Move, PeakMemoryIsBoundedByPlans) {
  if (!test_device().is_cpu()) GTEST_SKIP() << "measures the CPU allocator";
  std::int64_t sent_early = 0;
  EXPECT_TRUE(holds("memory of moves", 15, [&] {
    if (testing::Test::HasFailure()) return;
    ModelSpec model = model_of("llama3-8b", 8, 4, 6);
    model.hidden = 96, model.ffn = 256, model.vocab = 400, model.is_tied = false;
    const Plan first = random_plan_for(model, Precision::fp32),
               second = random_plan_for(model, Precision::fp32);
    SCOPED_TRACE(to_json(first).dump() + "\n" + to_json(second).dump());
    TrackingAllocator memory;
    const Early early{*rc::gen::element(PrecopyMode::never, PrecopyMode::always),
                      *rc::gen::element(Bytes(0), Bytes(1 << 16), Bytes(1 << 20))};
    const Moved moved = move_through(model, {first, second}, ValueCheck::away, early);
    ASSERT_TRUE(moved.problems.empty()) << moved.problems.front();
    std::int64_t largest = 0;
    for (const LogicalTensor& tensor : logical_tensors(model))
      largest = std::max(largest, tensor.shape.num_elements());
    EXPECT_LE(memory.peak(),
              moved.bound * 101 / 100 + kNumRanks * (kUnderWay.value + 4 * largest + early.spare.value));
    EXPECT_GT(memory.peak(), moved.bound / 4);  // measured
    sent_early += moved.reports.front().early.value;
  }));
  EXPECT_GT(sent_early, 0);
}

TEST(Move, RejectsPlansThatChangeTraining) {
  const ModelSpec model = model_of("gpt2", 4, 4);
  const auto plan = [&](int dp, std::int64_t batch, Precision precision) {
    return uniform_plan(model,
                        {.dp = dp, .batch = batch, .sequence_length = kLength, .precision = precision});
  };
  const Plan now = plan(2, 8, Precision::fp32);
  const auto refusal = [&](const Plan& next) -> std::string {
    try {
      change_plan(now, next, model, 2);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(plan(1, 8, Precision::fp32)), "");
  EXPECT_EQ(refusal(plan(4, 8, Precision::fp32)), "the plan needs 4 devices, but the run has 2");
  EXPECT_EQ(
      refusal(plan(2, 4, Precision::fp32)),
      "the plan would change the batch from 8 to 4; a plan change must not alter what the model learns");
  EXPECT_EQ(refusal(plan(2, 8, Precision::bf16)),
            "the plan would change the precision from fp32 to bf16; a plan change must not alter what the "
            "model learns");
}

}  // namespace
}  // namespace optimus
