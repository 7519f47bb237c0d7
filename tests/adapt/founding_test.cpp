// The founding example with simulated ranks: 24 layers on 16 devices as pp4 x tp2 x dp2. The machines of one
// stage become slow, and the run switches to three stages. When the machines have recovered, it returns to
// four.
#include <gtest/gtest.h>

#include "adapt/adaptation_controller.h"
#include "adapt/host_profile.h"
#include "cluster/standard.h"
#include "model/presets.h"
#include "plan/describe.h"
#include "plan/validate.h"
#include "trials/simulated_run.h"

namespace optimus {
namespace {

class FoundingExample : public testing::Test {
 protected:
  FoundingExample() {
    std::vector<std::string> hosts;
    for (int i = 0; i < 16; ++i) hosts.push_back("host" + std::to_string(i / 4));
    machines_ = profile_of(standard_cluster("a100x16"), hosts);
    UniformPlan shape{.pp = 4, .dp = 2, .microbatch = 1, .batch = 32, .sequence_length = 1024};
    shape.strategy.tp = 2;
    first_ = plan_ = uniform_plan(model_, shape);
    AdaptationContext context{.model = model_,
                              .policy = {},
                              .machines = machines_,
                              .demand =
                                  [this](const Cluster& cluster, const Plan& now) {
                                    Demand demand{model_, cluster, optimus_software(), fitted_constants()};
                                    demand.batch = now.batch, demand.sequence_length = now.sequence_length;
                                    demand.constraints.tp = demand.constraints.dp = Range{2, 2};
                                    demand.constraints.cp = Range{1, 1}, demand.constraints.schedule = "1f1b";
                                    return demand;
                                  },
                              .can_run = [](const Plan&) { return true; },
                              .clock = [this] { return now_; }};
    controller_ = std::make_unique<AdaptationController>(std::move(context), plan_, calibration_);
    simulate({});
  }

  void simulate(const std::vector<Condition>& conditions) {
    conditions_ = conditions;
    run_ = std::make_unique<SimulatedRun>(plan_, model_, machines_, Noise{}, ++seed_);
    run_->set(conditions_);
  }

  // Runs steps and adopts all proposals, until the plan has this number of stages.
  void steps_until_stages(std::size_t stages, int count) {
    for (int i = 0; i < count && plan_.pipelines.front().stages.size() != stages; ++i) {
      Observation seen = run_->next();
      seen.step = ++step_;
      now_ += std::max(1.0, seen.seconds);
      controller_->observe(seen);
      for (int wait = 0; wait < 5000 && controller_->is_weighing(); ++wait)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const auto proposal = controller_->take_proposal();
      if (!proposal) continue;
      ASSERT_EQ(find_problem(proposal->plan, model_), std::nullopt);
      why_ = proposal->why, plan_ = proposal->plan;
      controller_->plan_adopted(plan_, proposal, step_);
      simulate(conditions_);
    }
  }

  const ModelSpec model_ = *find_preset("gpt2-medium");
  HardwareProfile machines_;
  Plan first_, plan_;
  Calibration calibration_;
  std::unique_ptr<AdaptationController> controller_;
  std::unique_ptr<SimulatedRun> run_;
  std::vector<Condition> conditions_;
  std::string why_;
  double now_ = 0;
  std::int64_t step_ = 0;
  std::uint64_t seed_ = 0;
};

TEST_F(FoundingExample, DropsStageOfSlowMachines) {
  ASSERT_EQ(model_.layers, 24);
  steps_until_stages(0, 100);  // a better distribution of layers may come first
  ASSERT_EQ(plan_.pipelines.front().stages.size(), 4u) << short_text(plan_);
  // One layer on this host takes longer than eight layers on another one. A host that is only four times
  // slower would get fewer layers instead.
  simulate({{Cause::host, 2, 16}});
  const double slow = run_->step_seconds();
  steps_until_stages(3, 200);
  ASSERT_EQ(plan_.pipelines.front().stages.size(), 3u) << short_text(plan_) << ", " << why_;
  EXPECT_NE(why_.find("slow node 2"), std::string::npos) << why_;
  for (const Stage& stage : plan_.pipelines.front().stages)
    for (const int device : stage.devices) EXPECT_NE(device / 4, 2) << "a device of the slow machine";
  EXPECT_LT(run_->step_seconds(), 0.2 * slow)
      << "12 of 16 devices, 8 layers a stage instead of 6 at a sixteenth of their speed";

  // Steps do not show the unused machine. It is tried again after the usual duration of such conditions.
  simulate({});
  steps_until_stages(4, 6000);
  EXPECT_EQ(plan_.pipelines.front().stages.size(), 4u) << short_text(plan_);
}

}  // namespace
}  // namespace optimus
