// AdaptationControllerTest: the control loop without a run. Simulated ranks are slowed down, the controller
// gets their observations, and its proposals are adopted.
#pragma once

#include <gtest/gtest.h>

#include "adapt/adaptation_controller.h"
#include "adapt/host_profile.h"
#include "cluster/standard.h"
#include "cost/link_cost.h"
#include "model/presets.h"
#include "plan/validate.h"
#include "trials/simulated_run.h"

namespace optimus {

class AdaptationControllerTest : public testing::Test {
 protected:
  // Nodes with one device each.
  void begin(const UniformPlan& shape, int nodes, Range dp = {}, PolicyKind policy = PolicyKind::rule) {
    std::vector<std::string> hosts;
    for (int i = 0; i < nodes; ++i) hosts.push_back("node" + std::to_string(i));
    machines_ = profile_of(standard_cluster("a100x" + std::to_string(nodes)), hosts);
    plan_ = uniform_plan(model_, shape);
    ASSERT_FALSE(find_problem(plan_, model_));
    AdaptationContext context{.model = model_,
                              .policy = {.kind = policy},
                              .machines = machines_,
                              .demand =
                                  [this, shape, dp](const Cluster& cluster, const Plan& now) {
                                    Demand demand{model_, cluster, optimus_software(), fitted_constants()};
                                    demand.batch = now.batch, demand.sequence_length = now.sequence_length;
                                    // The search space of these tests: pipelines and replicas.
                                    demand.constraints.tp = demand.constraints.cp = Range{1, 1};
                                    if (!is_any_grid_) demand.constraints.pp = Range{shape.pp, shape.pp};
                                    demand.constraints.dp = dp, demand.constraints.schedule = "1f1b";
                                    return demand;
                                  },
                              .can_run = [](const Plan&) { return true; },
                              .clock = [this] { return now_; },
                              .scripted = scripted_,
                              .seeks_better_plan = seeks_better_plan_,
                              .last_step = last_step_,
                              .has_host_links = has_host_links_,
                              .membership = membership_,
                              .undone_steps = undone_steps_};
    controller_ = std::make_unique<AdaptationController>(std::move(context), plan_, calibration_);
    simulate();
  }

  void simulate() {
    run_ = std::make_unique<SimulatedRun>(plan_, model_, machines_, Noise{}, ++seed_);
    run_->set(conditions_);
  }
  void set(const std::vector<Condition>& conditions) {
    conditions_ = conditions;
    run_->set(conditions);
  }

  // Runs steps until a proposal, which is then adopted. A provisional one is adopted when it is confirmed.
  std::optional<PlanProposal> steps(int count) {
    for (int i = 0; i < count; ++i) {
      Observation seen = run_->next();
      seen.step = ++step_;
      if (seconds_) seen.seconds = *seconds_ * (1 + 0.01 * static_cast<double>(step_ % 3));
      now_ += std::max(least_seconds_, seen.seconds);
      controller_->observe(seen);
      if (are_probes_answered_ && controller_->take_probe_request()) controller_->probe_completed(probe());
      if (const auto gain = controller_->take_measured_gain()) measured_gain_ = gain;
      std::optional<PlanProposal> proposal = wait_for_proposal();
      if (proposal && proposal->is_provisional) {
        ++num_provisional_;
        provisional_ = std::exchange(proposal, std::nullopt);
      }
      if (provisional_ && controller_->provisional_status() == ProvisionalStatus::rejected) {
        ++num_rejected_, provisional_.reset();
        controller_->proposal_cancelled();
      }
      if (provisional_ && controller_->provisional_status() == ProvisionalStatus::confirmed)
        proposal = std::exchange(provisional_, std::nullopt);
      if (proposal) {
        plan_ = proposal->plan;
        controller_->plan_adopted(plan_, proposal, step_);
        simulate();
        return proposal;
      }
    }
    return std::nullopt;
  }

  // Nodes differ by up to 2 %; all-reduces take ring_ times the predicted time.
  ProbeResult probe() {
    ++num_probes_;
    ProbeResult seen;
    const Cluster cluster(machines_);
    const LinkCost cost(fitted_constants());
    const int size = cluster.num_devices();
    constexpr double kBytes = 1 << 21;
    const double message = cost.message_seconds(cluster.link(Device{0}, Device{size - 1}), kBytes) / kBytes;
    if (controller_->probe_request().ring) {
      seen.ring_bytes = kBytes;
      seen.ring_seconds =
          ring_ * cost.collective_seconds(Collective::all_reduce, shape_of_all(size, cluster), kBytes);
    }
    for (const int node : controller_->node_of_ranks()) {
      seen.network.push_back(message * (1 + 0.02 * (node % 2))), seen.bytes.push_back(kBytes);
      seen.devices.push_back(0.02 * (1 + 0.02 * (node % 3)));
      for (const std::vector<Condition>& some : {conditions_, hidden_})
        for (const Condition& condition : some)
          if (condition.location == node && num_wrong_probes_ == 0)
            (condition.cause == Cause::link ? seen.network : seen.devices).back() *= condition.factor;
    }
    num_wrong_probes_ = std::max(0, num_wrong_probes_ - 1);
    return seen;
  }

  // The test waits for the weighing's thread, so that results do not depend on timing.
  std::optional<PlanProposal> wait_for_proposal() {
    for (int i = 0; i < 20'000 && controller_->is_weighing(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return controller_->take_proposal();
  }

  const ModelSpec model_ = *find_preset("gpt3-1.3b");
  HardwareProfile machines_;
  Plan plan_;
  Calibration calibration_;
  std::unique_ptr<AdaptationController> controller_;
  std::unique_ptr<SimulatedRun> run_;
  std::vector<Condition> conditions_, hidden_;  // hidden: only probes show them
  double now_ = 0;
  std::int64_t step_ = 0;
  double least_seconds_ = 1;  // of a step, by the clock
  std::uint64_t seed_ = 0;
  int num_probes_ = 0, num_provisional_ = 0, num_rejected_ = 0;
  int num_wrong_probes_ = 0;  // the next probes show all devices as well
  double ring_ = 1;
  bool is_any_grid_ = false;
  bool seeks_better_plan_ = false;
  std::int64_t last_step_ = 0;  // of the run
  std::optional<ScriptedConditions> scripted_;
  std::optional<double> seconds_;  // of steps, in place of the simulated time
  MembershipHistory membership_;
  std::function<double(const Plan&, double)> undone_steps_;
  bool are_probes_answered_ = true, has_host_links_ = true;
  std::optional<double> measured_gain_;
  std::optional<PlanProposal> provisional_;  // proposed and not yet adopted
};

}  // namespace optimus
