// A training that switches plans learns the same as a single device: between any two plans, with ranks that
// become used and unused, for every kind of state. Ranks are threads; tests/cli/switch_test.py tests
// processes.
#include <ATen/ops/equal.h>
#include <rapidcheck.h>

#include <map>
#include <mutex>

#include "engine/equal_training.h"
#include "layout/property.h"
#include "plan/plan_json.h"
#include "reshard/random_plans.h"
#include "switching/plan_switch.h"

namespace optimus {
namespace {

struct SwitchResult {
  TrainingResult learned;
  std::vector<SwitchReport> reports;
  std::vector<std::string> problems;
};

// One rank of a training that switches from plan to plan, with `steps` steps under each.
class SwitchingRank {
 public:
  SwitchingRank(const ModelSpec& model, Comm& comm, const TrainingSetup& setup, PrecopyMode early)
      : facts_{model,
               comm,
               {.device = test_device(), .seed = 9, .timeout = Seconds(60)},
               {.timeout = Seconds(60),
                .is_checked = true,
                .max_combined = Bytes(256),
                .early = early,
                .spare = Bytes(1 << 24),
                .precopy_message = Bytes(2048)}},
        setup_(setup) {}

  void begin(const Plan& plan) {
    part_.plan = plan;
    std::vector<Group> groups = {{Role::world, {}}};
    if (has_device(plan, rank())) {
      part_.parameters = std::make_unique<Parameters>(plan, facts_.model, rank(), test_device());
      part_.parameters->initialize(setup_.seed);
      EngineOptions options = facts_.engine;
      options.rank = rank(), options.comm = num_devices(plan) > 1 ? &facts_.comm : nullptr;
      part_.engine = std::make_unique<Engine>(plan, facts_.model, *part_.parameters, options);
      for (const Group& group : groups_of(part_.engine->program(), plan, facts_.comm.size()))
        groups.push_back(group);
    }
    throw_if_failed(facts_.comm.connect(0, groups, Deadline::after(Seconds(60), "connecting")));
  }

  void train(int steps, TrainingResult& learned) {
    for (int i = 0; i < steps; ++i, ++step_) {
      if (part_.is_empty()) continue;
      const std::int64_t first = step_ * kBatch;
      const Batch batch = make_batch(setup_.samples(first, kBatch), part_.plan, step_, first, rank());
      const StepReport report = value_or_throw(part_.engine->train_step(batch, setup_.update));
      learned.losses.push_back(report.loss), learned.norms.push_back(report.grad_norm);
    }
  }

  SwitchReport change(const Plan& plan) {
    const auto owned = value_or_throw(PlanSwitch::create(facts_, part_, plan, ++epoch_));
    PlanSwitch& change = *owned;
    // The preparation runs on another thread while this one computes.
    std::string problem;
    std::thread other([&] {
      const auto done = change.prepare(Deadline::after(Seconds(60), "preparing"));
      if (!done) problem = text(done.error());
    });
    losses_during_change = {};
    train(1, losses_during_change);
    other.join();
    EXPECT_EQ(problem, "");
    if (facts_.move.early == PrecopyMode::always) precopy_state(change);
    return change.run(part_);
  }

  // Everything except its end.
  void cancel_change(const Plan& plan) {
    const auto owned = value_or_throw(PlanSwitch::create(facts_, part_, plan, ++epoch_));
    PlanSwitch& change = *owned;
    throw_if_failed(change.prepare(Deadline::after(Seconds(60), "preparing")));
    losses_during_change = {};
    precopy_state(change);
  }

  int rank() const { return facts_.comm.rank(); }
  const PlanPart& part() const { return part_; }
  TrainingResult losses_during_change;

 private:
  // While one more step is computed.
  void precopy_state(PlanSwitch& change) {
    const PrecopyTerms terms = agree_on_precopy(facts_.comm, &change, part_, Seconds(60));
    if (terms.num_waves > 0) change.begin_precopy(terms, part_);
    train(1, losses_during_change);
    EXPECT_EQ(change.end_precopy(part_), "");
  }

  const SwitchContext facts_;
  const TrainingSetup setup_;
  PlanPart part_;
  std::int64_t step_ = 0;
  int epoch_ = 0;
};

int steps_of(std::size_t num_plans, PrecopyMode early) {
  return static_cast<int>((early == PrecopyMode::always ? 4 : 3) * (num_plans - 1) + 2);
}

// Runs through all plans: two steps under each, one more while the next plan is prepared, and one during the
// precopy of state.
SwitchResult run_plans(const ModelSpec& model, const std::vector<Plan>& plans, PrecopyMode early) {
  const TrainingSetup setup{.samples = [&](std::int64_t first, std::int64_t count) {
    return make_samples(first, count, model.vocab);
  }};
  SwitchResult all;
  std::mutex mutex;
  const std::vector<std::string> problems = on_all_ranks([&](Comm& comm) {
    SwitchingRank switching_rank(model, comm, setup, early);
    switching_rank.begin(plans[0]);
    std::vector<SwitchReport> reports;
    const auto take = [&](std::size_t first, const TrainingResult& seen) {
      const std::lock_guard lock(mutex);
      const auto count = static_cast<std::size_t>(steps_of(plans.size(), early));
      all.learned.losses.resize(count), all.learned.norms.resize(count);
      for (std::size_t i = 0; i < seen.losses.size(); ++i)
        all.learned.losses[first + i] = seen.losses[i], all.learned.norms[first + i] = seen.norms[i];
    };
    for (std::size_t p = 0; p < plans.size(); ++p) {
      const auto first = static_cast<std::size_t>(steps_of(p + 1, early)) - 2;
      TrainingResult seen;
      switching_rank.train(2, seen);
      take(first, seen);
      if (p + 1 == plans.size()) continue;
      reports.push_back(switching_rank.change(plans[p + 1]));
      take(first + 2, switching_rank.losses_during_change);
    }
    const std::lock_guard lock(mutex);
    if (!switching_rank.part().is_empty()) {
      collect_tensors(*switching_rank.part().parameters, all.learned);
      all.learned.noise = switching_rank.part().engine->noise;
    }
    if (comm.rank() == 0) all.reports = reports;
  });
  all.problems.insert(all.problems.end(), problems.begin(), problems.end());
  return all;
}

void expect_equal_to_one_device(const ModelSpec& model, const std::vector<Plan>& plans,
                                PrecopyMode early = PrecopyMode::never) {
  const SwitchResult switched = run_plans(model, plans, early);
  ASSERT_TRUE(switched.problems.empty()) << switched.problems.front();
  Plan one = one_device(model, kBatch);
  one.fp8 = plans.front().fp8;
  const TrainingResult alone = train(model, one, steps_of(plans.size(), early));
  expect_same_learning(model, plans.back(), alone, switched.learned);
  expect_same_noise(plans.back(), alone, switched.learned);
  ASSERT_EQ(switched.reports.size(), plans.size() - 1);
  for (const SwitchReport& report : switched.reports) EXPECT_EQ(report.moved, report.minimum);
}

TEST(Switch, AnyPlanSequenceMatchesSingleDevice) {
  const std::vector<std::string> presets = {"gpt2", "llama3-8b", "qwen3-0.6b", "bert-base"};
  EXPECT_TRUE(holds("sequences of plans", 50, [&] {
    if (testing::Test::HasFailure()) return;
    const std::string preset = *rc::gen::elementOf(presets);
    const int kv_heads = random_plan::pick(1, 3), layers = random_plan::pick(1, 5);
    const int heads = kv_heads * random_plan::pick(2, 3);
    const ModelSpec model = model_of(preset, heads, kv_heads, layers);
    std::vector<Plan> plans;
    for (int i = random_plan::pick(2, 4); i > 0; --i)
      plans.push_back(random_plan_for(model, Precision::fp64));
    std::string trace = fmt::format("{} {} {} {}", preset, heads, kv_heads, layers);
    for (const Plan& plan : plans) trace += "\n" + to_json(plan).dump();
    SCOPED_TRACE(trace);
    expect_equal_to_one_device(model, plans, *rc::gen::element(PrecopyMode::never, PrecopyMode::always));
  }));
}

// fp8 maxima are moved too, including to ranks that were not part of the old plan.
TEST(Switch, Fp8ScalesSurviveSwitch) {
  EXPECT_TRUE(holds("sequences of plans", 10, [&] {
    if (testing::Test::HasFailure()) return;
    const ModelSpec model = model_of("llama3-8b", 4, 2, random_plan::pick(2, 4));
    std::vector<Plan> plans;
    for (int i = random_plan::pick(2, 4); i > 0;) {
      Plan plan = random_plan_for(model, Precision::fp64);
      plan.fp8 = {.blocks = {1, 2}, .window = 4};
      if (unsupported_reason(plan, model)) continue;  // tensor parts share key heads: try another plan
      plans.push_back(plan), --i;
    }
    std::string trace = model.name;
    for (const Plan& plan : plans) trace += "\n" + to_json(plan).dump();
    SCOPED_TRACE(trace);
    expect_equal_to_one_device(model, plans);
  }));
}

// Master weights and moments of one rank, by name and field.
using Bits = std::map<std::string, at::Tensor>;

void put_bits(const Parameters& parameters, const std::string& prefix, Bits& bits) {
  if (parameters.copies() != nullptr) put_bits(*parameters.copies(), prefix + " copy", bits);
  for (const LogicalTensor& tensor : parameters.tensors())
    for (const auto& [field, name] : {std::pair{&BlockState::masters, "master"},
                                      {&BlockState::first_moment, "first"},
                                      {&BlockState::second_moment, "second"}})
      if (const at::Tensor view = parameters.view(tensor.name, field); view.defined())
        bits[fmt::format("{} {} {}", prefix, tensor.name, name)] = view.clone();
}

struct ChangedOnce {
  Bits bits;  // after the switch
  Bytes sent, again;
  std::vector<std::string> problems;
};

// Three steps, then a switch to another plan. Without precopy, the step during which it would run is an
// ordinary step.
ChangedOnce change_once(const ModelSpec& model, const Plan& from, const Plan& to, PrecopyMode early) {
  const TrainingSetup setup{.samples = [&](std::int64_t first, std::int64_t count) {
    return make_samples(first, count, model.vocab);
  }};
  ChangedOnce result;
  std::mutex mutex;
  const std::vector<std::string> problems = on_all_ranks([&](Comm& comm) {
    SwitchingRank switching_rank(model, comm, setup, early);
    switching_rank.begin(from);
    TrainingResult seen;
    switching_rank.train(early == PrecopyMode::always ? 1 : 2, seen);
    const SwitchReport report = switching_rank.change(to);
    const std::lock_guard lock(mutex);
    result.sent = report.early, result.again = report.precopied;
    EXPECT_EQ(report.moved, report.minimum);
    if (!switching_rank.part().is_empty())
      put_bits(*switching_rank.part().parameters, fmt::format("rank {}:", comm.rank()), result.bits);
  });
  result.problems = problems;
  return result;
}

// State that is recomputed from gradients equals the state of the sender.
TEST(Switch, PrecopyIsBitIdenticalToPlainMove) {
  if (!test_device().is_cpu()) GTEST_SKIP() << "precopy of state is supported on CPUs only";
  std::int64_t sent = 0, again = 0;
  EXPECT_TRUE(holds("early bits", 25, [&] {
    if (testing::Test::HasFailure()) return;
    const Precision precision = *rc::gen::element(Precision::fp32, Precision::bf16, Precision::fp16);
    const ModelSpec model = model_of("llama3-8b", 4, 2, random_plan::pick(1, 4));
    const Plan from = random_plan_for(model, precision), to = random_plan_for(model, precision);
    SCOPED_TRACE(to_json(from).dump() + "\n" + to_json(to).dump());
    const ChangedOnce plain = change_once(model, from, to, PrecopyMode::never),
                      early = change_once(model, from, to, PrecopyMode::always);
    ASSERT_TRUE(plain.problems.empty()) << plain.problems.front();
    ASSERT_TRUE(early.problems.empty()) << early.problems.front();
    ASSERT_EQ(plain.bits.size(), early.bits.size());
    for (const auto& [name, values] : plain.bits) ASSERT_TRUE(at::equal(values, early.bits.at(name))) << name;
    // Less than half of the precopied data is sent again: gradients instead of master weights and moments (a
    // third), or instead of moments only (a half).
    EXPECT_LE(2 * early.again.value, early.sent.value);
    sent += early.sent.value, again += early.again.value;
  }));
  EXPECT_GT(sent, 0);
  EXPECT_GT(again, 0);
}

// State that was precopied and not used has no effect.
TEST(Switch, CancelledSwitchLeavesTrainingUnchanged) {
  const ModelSpec model = model_of("gpt2", 4, 4, 3);
  const TrainingSetup setup{.samples = [&](std::int64_t first, std::int64_t count) {
    return make_samples(first, count, model.vocab);
  }};
  UniformPlan shape{.dp = 2, .batch = kBatch, .sequence_length = kLength, .precision = Precision::fp64};
  const Plan from = uniform_plan(model, shape);
  shape.dp = 1, shape.pp = 2;
  const Plan to = uniform_plan(model, shape);
  TrainingResult learned;
  std::mutex mutex;
  const std::vector<std::string> problems = on_all_ranks([&](Comm& comm) {
    SwitchingRank switching_rank(model, comm, setup, PrecopyMode::always);
    switching_rank.begin(from);
    TrainingResult seen;
    switching_rank.train(2, seen);
    switching_rank.cancel_change(to);
    seen.losses.insert(seen.losses.end(), switching_rank.losses_during_change.losses.begin(),
                       switching_rank.losses_during_change.losses.end());
    seen.norms.insert(seen.norms.end(), switching_rank.losses_during_change.norms.begin(),
                      switching_rank.losses_during_change.norms.end());
    switching_rank.train(2, seen);
    const std::lock_guard lock(mutex);
    if (switching_rank.part().is_empty()) return;
    learned.losses = seen.losses, learned.norms = seen.norms;
    collect_tensors(*switching_rank.part().parameters, learned);
  });
  ASSERT_TRUE(problems.empty()) << problems.front();
  expect_same_learning(model, from, train(model, one_device(model, kBatch), 5), learned);
}

// Ranks that wait for the lost rank are notified and keep their state.
TEST(Switch, RankLossDuringPrecopyIsHarmless) {
  const ModelSpec model = model_of("gpt2", 4, 4, 3);
  const auto plan = [&](int pp, int dp) {
    return uniform_plan(
        model,
        {.pp = pp, .dp = dp, .batch = kBatch, .sequence_length = kLength, .precision = Precision::fp32});
  };
  const Plan from = plan(3, 1), to = plan(1, 3);
  std::mutex mutex;
  int num_told = 0;
  const auto begin_time = std::chrono::steady_clock::now();
  const std::vector<std::string> problems = on_all_ranks([&](Comm& comm) {
    const int rank = comm.rank();
    const SwitchContext facts{
        model,
        comm,
        {.device = at::kCPU, .rank = rank, .comm = &comm, .timeout = Seconds(60)},
        {.timeout = Seconds(60), .early = PrecopyMode::always, .spare = Bytes(1 << 24)}};
    PlanPart part{.plan = from};
    std::vector<Group> groups = {{Role::world, {}}};
    if (has_device(from, rank)) {
      part.parameters = std::make_unique<Parameters>(from, model, rank, at::kCPU);
      part.parameters->initialize(3);
      part.engine = std::make_unique<Engine>(from, model, *part.parameters, facts.engine);
      for (const Group& group : part.engine->groups()) groups.push_back(group);
    }
    throw_if_failed(comm.connect(0, groups, Deadline::after(Seconds(60), "connecting")));
    Bits before, behind;
    if (!part.is_empty()) put_bits(*part.parameters, "", before);
    const auto owned = value_or_throw(PlanSwitch::create(facts, part, to, 1));
    PlanSwitch& change = *owned;
    throw_if_failed(change.prepare(Deadline::after(Seconds(60), "preparing")));
    const PrecopyTerms terms = agree_on_precopy(comm, &change, part, Seconds(60));
    ASSERT_GT(terms.num_waves, 0U);
    if (rank == 1) return;  // destroys its Comm: the other ranks see that it has left
    change.begin_precopy(terms, part);
    const std::string failure = part.is_empty() ? "rank 1" : (change.end_precopy(part));
    if (!part.is_empty()) put_bits(*part.parameters, "", behind);
    const std::lock_guard lock(mutex);
    if (failure.find("rank 1") != std::string::npos && !part.is_empty()) ++num_told;
    for (const auto& [name, values] : before) EXPECT_TRUE(at::equal(values, behind.at(name))) << name;
  });
  ASSERT_TRUE(problems.empty()) << problems.front();
  EXPECT_EQ(num_told, 2);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count(), 30);
}

TEST(Switch, RefusesChangeOfFp8Blocks) {
  const ModelSpec model = model_of("llama3-8b", 4, 2, 3);
  Plan from = one_device(model, kBatch), to = from;
  from.fp8.blocks = {1}, to.fp8.blocks = {1, 2};
  try {
    change_plan(from, to, model, 1);
    FAIL() << "a change of fp8 layers was not refused";
  } catch (const UserError& refusal) {
    EXPECT_STREQ(refusal.what(),
                 "the plan would change the fp8 GEMMs from blocks 1, window 16 to blocks 1..2, window 16; a "
                 "plan change "
                 "must not alter what the model learns");
  }
}

}  // namespace
}  // namespace optimus
