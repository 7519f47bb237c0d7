// A training that changes its plan on the way learns what one device learns: any plan to any other, ranks that come into use and go
// out of it, every kind of state. Ranks are threads; tests/cli/switch_test.py has processes.
#include <rapidcheck.h>

#include <mutex>

#include "engine/equal_training.h"
#include "layout/property.h"
#include "plan/plan_json.h"
#include "reshard/plan_switch.h"
#include "reshard/random_plans.h"

namespace optimus {
namespace {

struct Switched {
  Learned learned;
  std::vector<SwitchReport> reports;
  std::vector<std::string> problems;
};

// One rank of a training that goes from plan to plan, `steps` with each.
class Traveller {
 public:
  Traveller(const ModelSpec& model, Comm& comm, const Course& course)
      : facts_{model,
               comm,
               {.device = test_device(), .seed = 9, .patience = Seconds(60)},
               {.patience = Seconds(60), .is_checked = true, .alone = Bytes(256)}},
        course_(course) {}

  void begin(const Plan& plan) {
    part_.plan = plan;
    std::vector<Group> groups = {{Role::world, {}}};
    if (has_device(plan, rank())) {
      part_.parameters = std::make_unique<Parameters>(plan, facts_.model, rank(), test_device());
      part_.parameters->initialize(course_.seed);
      EngineOptions options = facts_.engine;
      options.rank = rank(), options.comm = num_devices(plan) > 1 ? &facts_.comm : nullptr;
      part_.engine = std::make_unique<Engine>(plan, facts_.model, *part_.parameters, options);
      for (const Group& group : groups_of(part_.engine->program(), plan, facts_.comm.size()))
        groups.push_back(group);
    }
    done_or_throw(facts_.comm.connect(0, groups, Deadline::after(Seconds(60), "connecting")));
  }

  void train(int steps, Learned& learned) {
    for (int i = 0; i < steps; ++i, ++step_) {
      if (part_.is_empty()) continue;
      const std::int64_t first = step_ * kBatch;
      const Batch batch = make_batch(course_.samples(first, kBatch), part_.plan, step_, first, rank());
      const StepReport report = value_or_throw(part_.engine->train_step(batch, course_.update));
      learned.losses.push_back(report.loss), learned.norms.push_back(report.grad_norm);
    }
  }

  SwitchReport change(const Plan& plan) {
    PlanSwitch change(facts_, part_, plan, ++epoch_);
    // Beforehand, on another thread, while this one computes.
    std::string problem;
    std::thread other([&] {
      const auto done = change.prepare(Deadline::after(Seconds(60), "preparing"));
      if (!done) problem = text(done.error());
    });
    Learned meanwhile;
    train(1, meanwhile);
    losses_meanwhile = meanwhile;
    other.join();
    EXPECT_EQ(problem, "");
    return change.run(part_);
  }

  int rank() const { return facts_.comm.rank(); }
  const PlanPart& part() const { return part_; }
  Learned losses_meanwhile;

 private:
  const SwitchFacts facts_;
  const Course course_;
  PlanPart part_;
  std::int64_t step_ = 0;
  int epoch_ = 0;
};

// Through all plans, two steps with each and one more while the next is prepared.
Switched travel(const ModelSpec& model, const std::vector<Plan>& plans) {
  const Course course{.samples = [&](std::int64_t first, std::int64_t count) {
    return samples_of(first, count, model.vocab);
  }};
  Switched all;
  std::mutex mutex;
  const std::vector<std::string> problems = on_all_ranks([&](Comm& comm) {
    Traveller traveller(model, comm, course);
    traveller.begin(plans[0]);
    std::vector<SwitchReport> reports;
    const auto take = [&](std::size_t first, const Learned& seen) {
      const std::lock_guard lock(mutex);
      all.learned.losses.resize(3 * plans.size() - 1), all.learned.norms.resize(3 * plans.size() - 1);
      for (std::size_t i = 0; i < seen.losses.size(); ++i)
        all.learned.losses[first + i] = seen.losses[i], all.learned.norms[first + i] = seen.norms[i];
    };
    for (std::size_t p = 0; p < plans.size(); ++p) {
      Learned seen;
      traveller.train(2, seen);
      take(3 * p, seen);
      if (p + 1 == plans.size()) continue;
      reports.push_back(traveller.change(plans[p + 1]));
      take(3 * p + 2, traveller.losses_meanwhile);
    }
    const std::lock_guard lock(mutex);
    if (!traveller.part().is_empty()) put(*traveller.part().parameters, all.learned);
    if (comm.rank() == 0) all.reports = reports;
  });
  all.problems.insert(all.problems.end(), problems.begin(), problems.end());
  return all;
}

void expect_equal_to_one_device(const ModelSpec& model, const std::vector<Plan>& plans) {
  const Switched switched = travel(model, plans);
  ASSERT_TRUE(switched.problems.empty()) << switched.problems.front();
  Plan one = one_device(model, kBatch);
  one.fp8 = plans.front().fp8;
  const Learned alone = train(model, one, static_cast<int>(3 * plans.size() - 1));
  expect_same_learning(model, plans.back(), alone, switched.learned);
  ASSERT_EQ(switched.reports.size(), plans.size() - 1);
  for (const SwitchReport& report : switched.reports) EXPECT_EQ(report.moved, report.minimum);
}

TEST(Switch, AnySequenceOfPlansLearnsWhatOneDeviceLearns) {
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
    expect_equal_to_one_device(model, plans);
  }));
}

// Maxima of 8-bit products come along, also to ranks that had no part in the plan before.
TEST(Switch, ScalesOfProductsIn8BitsAreTakenAlong) {
  EXPECT_TRUE(holds("sequences of plans", 10, [&] {
    if (testing::Test::HasFailure()) return;
    const ModelSpec model = model_of("llama3-8b", 4, 2, random_plan::pick(2, 4));
    std::vector<Plan> plans;
    for (int i = random_plan::pick(2, 4); i > 0;) {
      Plan plan = random_plan_for(model, Precision::fp64);
      plan.fp8 = {.blocks = {1, 2}, .window = 4};
      try {
        ensure_engine_supports(plan, model);
        plans.push_back(plan), --i;
      } catch (const UserError&) {  // tensor parts share key heads: another one
      }
    }
    std::string trace = model.name;
    for (const Plan& plan : plans) trace += "\n" + to_json(plan).dump();
    SCOPED_TRACE(trace);
    expect_equal_to_one_device(model, plans);
  }));
}

TEST(Switch, OtherProductsIn8BitsAreRefused) {
  const ModelSpec model = model_of("llama3-8b", 4, 2, 3);
  Plan from = one_device(model, kBatch), to = from;
  from.fp8.blocks = {1}, to.fp8.blocks = {1, 2};
  try {
    change_plan(from, to, model, 1);
    FAIL() << "layers came to multiply in 8 bits";
  } catch (const UserError& refusal) {
    EXPECT_STREQ(
        refusal.what(),
        "the run has products in fp8: blocks 1, window 16, the plan blocks 1..2, window 16: a change of "
        "plan must not change what is learned");
  }
}

}  // namespace
}  // namespace optimus
