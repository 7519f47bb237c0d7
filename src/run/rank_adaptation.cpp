// Implements the part of RankRun that decides on plans: the properties of the machines, the planner's best
// plan for them, and the adaptation controller on rank 0. See rank_run.h.
#include <algorithm>

#include "adapt/host_profile.h"
#include "base/text.h"
#include "cluster/open.h"
#include "engine/engine.h"
#include "plan/layouts.h"
#include "policy/learned_policy.h"
#include "run/rank_run.h"
#include "rundir/worker_list.h"
#include "settings/choose_plan.h"
#include "settings/planner_request.h"
#include "switching/memory.h"

namespace optimus {
namespace {

// Returns the expected cost, in steps, of losing state that has no redundant copy: half of the interval
// between two checkpoints plus the restart time. Without periodic checkpoints everything is lost, which is
// estimated as one hour.
double expected_steps_undone(const TrainOptions& options, double step_seconds) {
  const SaveRule rule = parse_save_rule(options.save_every, "--save-every");
  double steps_between_saves = rule.steps > 0          ? static_cast<double>(rule.steps)
                               : rule.period.value > 0 ? rule.period.value / step_seconds
                                                       : 2 * 3600 / step_seconds;
  if (options.memory_every > 0)
    steps_between_saves = std::min(steps_between_saves, static_cast<double>(options.memory_every));
  return steps_between_saves / 2 + options.failures.restart.value / step_seconds;
}

ExpectedLifetime expected_life(const TrainOptions& options) {
  return options.failures.mtbf.value > 0 ? ExpectedLifetime{options.failures.mtbf.value, 1}
                                         : ExpectedLifetime{};
}

}  // namespace

Feasible<Plan> RankRun::best_plan(const Plan& now) const {
  const PlannerRequest request = planner_request(options_, settings_.model, device_facts());
  Feasible<ChosenPlan> chosen = choose_plan(request.with_shape_of(now).for_devices(rank_.comm.size()));
  if (!chosen) return tl::unexpected(chosen.error());
  Plan plan = std::move(chosen->plan);
  plan.fp8 = now.fp8;  // keeps the numerical results unchanged
  if (plan.copy_distance > 0)
    plan = with_copies_in_other_domains(std::move(plan), indices_of_distinct(hosts_of_ranks()));
  return plan;
}

std::vector<std::string> RankRun::hosts_of_ranks() const {
  std::vector<std::string> hosts(static_cast<std::size_t>(rank_.comm.size()));
  for (const WorkerEntry& worker : listed_workers(settings_.run))
    if (worker.rank < rank_.comm.size()) hosts[static_cast<std::size_t>(worker.rank)] = worker.host;
  return hosts;
}

DeviceFacts RankRun::device_facts() const {
  const std::vector<std::string> hosts = hosts_of_ranks();
  const auto num_on_host =
      std::count(hosts.begin(), hosts.end(), hosts[static_cast<std::size_t>(rank_index())]);
  return with_memory_of_plan(all_device_facts(rank_.device, options_), memory_of_plan(),
                             static_cast<int>(num_on_host));
}

Bytes RankRun::memory_of_plan() const {
  if (settings_.model.is_custom() || !has_device(part_.plan, rank_index())) return Bytes(0);
  return predicted_memory(part_.plan, settings_.model, rank_index(), rank_.device);
}

bool RankRun::shares_cores(const std::vector<std::string>& hosts) const {
  const auto num_on_host = std::count(hosts.begin(), hosts.end(), hosts.front());
  return !facts_of(rank_.device).is_gpu && num_on_host * rank_.threads > num_cores();
}

double RankRun::observed_device_mtbf(int num_devices) const {
  Situation situation;
  MembershipHistory membership = membership_;
  describe_membership(membership, seconds_now(), num_devices, expected_life(options_), situation);
  return 1 / situation.losses_per_device_second;
}

Policy RankRun::chosen_policy(const std::vector<std::string>& hosts) const {
  Policy policy = parse_policy(options_.policy.empty() ? "rule" : options_.policy, "--policy");
  if (options_.policy.empty() && shares_cores(hosts)) policy.kind = PolicyKind::never;
  // Another plan would change the results of the training.
  if (is_asynchronous(part_.plan.schedule)) policy.kind = PolicyKind::never;
  return policy;
}

std::unique_ptr<AdaptationController> RankRun::make_controller() {
  if (!membership_.begin_time) membership_.begin_time = seconds_now();
  if (!is_watched() || rank_index() != 0 || settings_.model.is_custom()) return nullptr;
  const DeviceFacts device = device_facts();
  const int size = rank_.comm.size();
  const std::vector<std::string> hosts = hosts_of_ranks();
  Policy policy = chosen_policy(hosts);
  std::shared_ptr<const LearnedPolicy> network;
  if (!options_.learned.empty())
    network = std::make_shared<LearnedPolicy>(read_learned_policy(options_.learned)),
    policy.network = network.get();
  const bool may_change = options_.redundancy == Redundancy::automatic && rank_.elastic != nullptr;
  const bool has_copies = rank_.elastic != nullptr && num_tolerated_losses(part_.plan) > 0 && !may_change;
  AdaptationContext context{
      .model = settings_.model,
      .policy = policy,
      .machines = profile_of(default_machines(device, size), hosts),
      .demand =
          [=, this](const Cluster& cluster, const Plan& now) {
            const PlannerRequest request =
                planner_request(options_, settings_.model, device).with_shape_of(now);
            if (has_copies) return demand_of(request.with_mtbf(kShortMtbf), cluster);
            if (!may_change) return demand_of(request, cluster);
            return demand_of(request.with_mtbf(Seconds(observed_device_mtbf(num_devices(now)))), cluster);
          },
      .can_run =
          [this, has_copies](const Plan& plan) {
            if (has_copies && num_tolerated_losses(plan) == 0) return false;
            return !unsupported_reason(plan, settings_.model).has_value();
          },
      .clock = seconds_now,
      .seeks_better_plan = true,
      .last_step = settings_.steps,
      .has_host_links = !rank_.comm.uses_nccl(),
      .learned_policy = network,
      .membership = membership_,
  };
  context.expected_lifetime = expected_life(options_);
  if (const auto link_rate = receive_bytes_per_second(Cluster(context.machines), 1))
    context.costs.link_bytes_per_second = kLinkEfficiency * *link_rate;
  if (may_change)
    context.undone_steps = [this](const Plan& plan, double step_seconds) {
      return num_tolerated_losses(plan) > 0 ? 0 : expected_steps_undone(options_, step_seconds);
    };
  if (policy.kind == PolicyKind::oracle)
    context.scripted = ScriptedConditions{read_timeline(options_.conditions), *membership_.begin_time};
  return std::make_unique<AdaptationController>(std::move(context), part_.plan, calibration_);
}

}  // namespace optimus
