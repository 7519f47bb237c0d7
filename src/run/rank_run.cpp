// Implements rank_run.h: a rank's plan parts and training loop.
#include "run/rank_run.h"

#include <algorithm>

#include "adapt/host_profile.h"
#include "base/error.h"
#include "base/text.h"
#include "cluster/open.h"
#include "cluster/standard.h"
#include "elastic/host_memory.h"
#include "elastic/membership_coordinator.h"
#include "elastic/memory_level.h"
#include "inference/evaluate.h"
#include "inference/weights.h"
#include "plan/describe.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "policy/learned_policy.h"
#include "run/profile.h"
#include "run/rank_console.h"
#include "run/worker.h"
#include "rundir/observation_record.h"
#include "rundir/plan_files.h"
#include "rundir/run_history.h"
#include "rundir/worker_list.h"
#include "settings/choose_plan.h"
#include "settings/expected.h"
#include "settings/phases.h"
#include "switching/memory.h"

namespace optimus {
namespace {

// Mean validation loss over the first windows of the held-out data, at most a few batches.
std::optional<double> validation_loss(const PlanPart& part, const TrainSettings& settings, int rank) {
  constexpr std::int64_t kMaxBatches = 4;
  if (!settings.validation || !settings.model.is_causal) return std::nullopt;
  NullSink quiet;
  const LossSum total = sum_losses(*part.engine, part.plan, settings.model, *settings.validation,
                                   kMaxBatches * part.plan.batch, quiet, rank);
  return total.count > 0 ? std::optional(total.mean()) : std::nullopt;
}

}  // namespace

EngineOptions RankRun::engine_options() const {
  EngineOptions options{.device = rank_.device, .seed = options_.seed};
  options.gemm_algorithm_file = measured_cluster_path().parent_path() / "products.json";
  options.rank = number(), options.timeout = options_.timeout;
  if (rank_.elastic != nullptr) options.step_heartbeat = rank_.elastic->step_heartbeat;
  options.predicted = [this](const Plan& plan, const Program& program) {
    return predicted_seconds(facts_of(rank_.device).type, plan, settings_.model, program);
  };
  return options;
}

void RankRun::fill(Parameters& parameters, const std::optional<Path>& checkpoint) const {
  if (checkpoint)
    restore(Checkpoint::open(*checkpoint), settings_.model, Restored::everything, parameters);
  else if (settings_.weights != nullptr)
    load_weights(*settings_.weights, parameters, rank_.events);
  else
    parameters.initialize(options_.seed);
}

void RankRun::build_part(const Plan& plan, const std::optional<Path>& checkpoint, const TrainingState& state,
                         std::int64_t epoch, Training& training) {
  part_ = {.plan = plan};
  if (!has_device(plan, number())) return training.resume_from(state, epoch);
  part_.parameters = std::make_unique<Parameters>(plan, settings_.model, number(), rank_.device);
  fill(*part_.parameters, checkpoint);
  EngineOptions options = engine_options();
  const bool is_alone = num_devices(plan) == 1;
  if (!is_alone) options.comm = &rank_.comm;
  part_.engine = std::make_unique<Engine>(plan, settings_.model, *part_.parameters, options);
  // Set before connecting: if other ranks are lost meanwhile, this rank reports this state.
  training.resume_from(state, epoch);
  if (!is_alone)
    throw_if_failed(
        rank_.comm.connect(0, part_.engine->groups(), Deadline::after(options_.timeout, "connecting")));
}

Agreement RankRun::ranks_of(const PlanPart& part) const {
  return {num_devices(part.plan) == 1 ? nullptr : &rank_.comm, world_of(part.plan, rank_.comm.size()),
          options_.timeout};
}

PartServices RankRun::make_services(const PlanPart& part) {
  PartServices made;
  if (part.is_empty()) return made;
  for (SmallFile& file : small_files_)
    if (file.name == kPlanFile) file.content = plan_text(part.plan);
  const Agreement ranks = ranks_of(part);
  const auto saver = [&](const Path& folder, Retention retention, std::optional<HostMemory> hosts = {}) {
    return std::make_unique<Saver>(Saver::Target{files_, folder, retention, small_files_, std::move(hosts)},
                                   part.plan, settings_.model, *part.parameters, ranks, number());
  };
  made.saver = saver(settings_.run, {options_.keep_last, options_.keep_every});
  if (const std::optional<Path> level = find_memory_level(settings_.run); options_.memory_every > 0 && level)
    made.memory = saver(*level, {.keep_last = 1});
  if (const auto hosts = find_host_memory(settings_.run); options_.memory_every > 0 && hosts)
    made.memory =
        saver(settings_.run, {},
              (seats_.empty() ? *hosts : hosts->for_workers(seats_)).for_ranks(storing_ranks(part.plan)));
  // Only for the first plan: the profiled steps are the first of the run.
  if (!options_.profile.empty() && !std::exchange(has_profiled_, true))
    made.profiler = std::make_unique<Profiler>(
        ProfileOptions{options_.profile, settings_.run, run_.resumed.state.step, settings_.steps}, part.plan,
        settings_.model, *part.engine, *part.parameters, ranks, rank_.events, rank_.line);
  return made;
}

Plan RankRun::best_plan(const Plan& now) const {
  TrainOptions options = options_;
  options.devices = rank_.comm.size(), options.batch = now.batch;
  options.sequence_length = now.sequence_length;
  options.precision = text(now.precision);
  Plan plan = choose_plan(options, settings_.model, device_facts()).plan;
  plan.fp8 = now.fp8;  // keeps the numerics unchanged
  if (plan.copy_distance > 0)
    plan = with_copies_in_other_domains(std::move(plan), numbered(hosts_of_ranks()));
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
  const auto num_on_host = std::count(hosts.begin(), hosts.end(), hosts[static_cast<std::size_t>(number())]);
  return with_memory_of_plan(all_device_facts(rank_.device, options_), memory_of_plan(),
                             static_cast<int>(num_on_host));
}

Bytes RankRun::memory_of_plan() const {
  if (settings_.model.is_custom() || !has_device(part_.plan, number())) return Bytes(0);
  return predicted_memory(part_.plan, settings_.model, number(), rank_.device);
}

bool RankRun::shares_cores(const std::vector<std::string>& hosts) const {
  const auto num_on_host = std::count(hosts.begin(), hosts.end(), hosts.front());
  return !facts_of(rank_.device).is_gpu && num_on_host * rank_.threads > num_cores();
}

void RankRun::add_to_history() const {
  if (options_.history == "none" || settings_.model.is_custom() || shares_cores(hosts_of_ranks())) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  (void)record_run(options_.history,
                   {settings_.run, part_.plan, settings_.model, facts_of(rank_.device).type,
                    std::chrono::duration_cast<std::chrono::seconds>(now).count()},
                   rank_.events);
}

namespace {

// The number of steps that are undone when state without a redundant copy is lost: half of the interval
// between two checkpoints, plus the time to restart. Without periodic checkpoints all steps are lost,
// estimated as one hour.
double expected_steps_undone(const TrainOptions& options, double step_seconds) {
  const SaveRule rule = parse_save_rule(options.save_every, "--save-every");
  double between = rule.steps > 0          ? static_cast<double>(rule.steps)
                   : rule.period.value > 0 ? rule.period.value / step_seconds
                                           : 2 * 3600 / step_seconds;
  if (options.memory_every > 0) between = std::min(between, static_cast<double>(options.memory_every));
  return between / 2 + options.failures.restart.value / step_seconds;
}

ExpectedLifetime expected_life(const TrainOptions& options) {
  return options.failures.mtbf.value > 0 ? ExpectedLifetime{options.failures.mtbf.value, 1}
                                         : ExpectedLifetime{};
}

}  // namespace

double RankRun::observed_device_mtbf(int num_devices) const {
  Situation situation;
  MembershipHistory membership = membership_;
  describe_membership(membership, seconds_now(), num_devices, expected_life(options_), situation);
  return 1 / situation.losses_per_device_second;
}

std::unique_ptr<AdaptationController> RankRun::make_controller() {
  if (!membership_.begin_time) membership_.begin_time = seconds_now();
  if (!is_watched() || number() != 0 || settings_.model.is_custom()) return nullptr;
  const DeviceFacts device = device_facts();
  const int size = rank_.comm.size();
  const std::vector<std::string> hosts = hosts_of_ranks();
  Policy policy = parse_policy(options_.policy.empty() ? "rule" : options_.policy, "--policy");
  if (options_.policy.empty() && shares_cores(hosts)) policy.kind = PolicyKind::never;
  // With an asynchronous schedule, another plan would change the training result.
  if (is_asynchronous(part_.plan.schedule)) policy.kind = PolicyKind::never;
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
          [this, device, has_copies, may_change](const Cluster& cluster, const Plan& now) {
            TrainOptions options = options_;
            options.batch = now.batch, options.sequence_length = now.sequence_length;
            options.precision = text(now.precision);
            if (has_copies) options.failures.mtbf = kShortMtbf;
            if (may_change) options.failures.mtbf = Seconds(observed_device_mtbf(num_devices(now)));
            return demand_of(options, settings_.model, device, cluster);
          },
      .can_run =
          [this, has_copies](const Plan& plan) {
            if (has_copies && num_tolerated_losses(plan) == 0) return false;
            try {
              ensure_engine_supports(plan, settings_.model);
              return true;
            } catch (const UserError&) {
              return false;
            }
          },
      .clock = seconds_now,
      .seeks_better_plan = true,
      .last_step = settings_.steps,
      .has_host_links = !rank_.comm.uses_nccl(),
      .learned_policy = network,
      .membership = membership_,
  };
  context.expected_lifetime = expected_life(options_);
  if (const auto received = receive_bytes_per_second(Cluster(context.machines), 1))
    context.costs.link_bytes_per_second = kLinkEfficiency * *received;
  if (may_change)
    context.undone_steps = [this](const Plan& plan, double step_seconds) {
      return num_tolerated_losses(plan) > 0 ? 0 : expected_steps_undone(options_, step_seconds);
    };
  if (policy.kind == PolicyKind::oracle)
    context.scripted = ScriptedConditions{read_time_line(options_.foretold), *membership_.begin_time};
  return std::make_unique<AdaptationController>(std::move(context), part_.plan, calibration_);
}

// If each rank has only a part of the weights, they are read from the checkpoint.
void RankRun::show_result(TrainResult& result) {
  if (!part_.is_empty() && num_devices(part_.plan) == 1)
    return export_and_sample(settings_, options_, *part_.parameters, rank_, result);
  const Plan whole = one_device_plan(settings_);
  Parameters all(whole, settings_.model, 0, rank_.device, StorageMode::weights);
  restore(Checkpoint::open(result.checkpoint), settings_.model, Restored::weights, all);
  export_and_sample(settings_, options_, all, rank_, result);
}

TrainingHooks RankRun::hooks() {
  return {
      [this](const Plan& plan, std::int64_t step, std::int64_t first) {
        return read_batch(*settings_.samples, plan, step, first, number(), options_.dealing);
      },
      [this](const PlanPart& part) { return validation_loss(part, settings_, number()); },
      [this](const PlanPart& part) { return make_services(part); },
  };
}

RankRun::End RankRun::train_on(Training& training) {
  std::optional<PlanSwitchController::RequestSources> outside;
  if (number() == 0)
    outside.emplace(PlanSwitchController::RequestSources{
        requests_, [&](const Plan& now) { return best_plan(now); }, rank_.elastic != nullptr});
  MoveOptions move{
      .timeout = options_.timeout, .retains_old = rank_.elastic != nullptr, .early = options_.precopy};
  if (!options_.layout.max_memory) move.spare = spare_memory(rank_.device, rank_.comm.size());
  const std::unique_ptr<AdaptationController> controller = make_controller();
  if (controller != nullptr)
    outside->proposal = [&] { return controller->take_proposal(); },
    outside->refused = [&] { controller->proposal_refused(); },
    outside->provisional_status = [&] { return controller->provisional_status(); };
  PlanSwitchController switches(
      {settings_.model, rank_.comm, engine_options(), move}, part_,
      with_decided_starts(run_.script, settings_, training.done().phase_begins), outside,
      [&](const PlanSwitch& next) { check_fits(next, settings_.model, number(), rank_.device); });
  const auto release = [&] {
    rank_.agreement.release();
    switches.release();
  };
  SurvivorReport words;
  std::exception_ptr failure;
  try {
    std::optional<RankMonitor> monitor;
    if (is_watched())
      monitor.emplace(
          RankMonitor::Facts{rank_.comm, settings_.model, options_.timeout, engine_options().predicted,
                             rank_.device, controller.get(), ObservationRecord(settings_.run)},
          part_);
    return training.run(records_ ? &*records_ : nullptr, &switches, monitor ? &*monitor : nullptr);
  } catch (const MembershipChangeRequested& asked) {
    words.leaves = asked.drained == number() || asked.leaves;
    try {
      training.finish_saves();
    } catch (const PeersLost& lost) {
      words.missing = lost.failure.missing;
    }
  } catch (const Interrupted&) {
    if (number() == 0) requests_.close("the run has ended");
    throw;
  } catch (const PeersLost& lost) {
    failure = std::current_exception(), words.missing = lost.failure.missing;
    words.leaves = rank_.elastic != nullptr && rank_.elastic->leaves();
    earlier_ = switches.take_previous_part();
    if (switches.has_moved()) training.resume_from(training.done(), training.epoch() + 1);
  } catch (const std::exception& error) {  // not Interrupted, which has saved already
    failure = std::current_exception(), words.failure_reason = error.what();
  }
  if (const auto& asked = switches.drain_request())
    pending_drain_ = PendingDrain{asked->name, worker_id_of(asked->rank)};
  training.end_writing();
  write_plan_if_missing(training.epoch());
  if (std::optional<MembershipChange> order = join_membership_change(training, words, release)) return *order;
  switches.release();
  if (number() == 0) requests_.close("the run has failed");
  if (failure) std::rethrow_exception(failure);
  throw UserError("no process decided how to continue");
}

std::optional<MembershipChange> RankRun::begin(Training& training) {
  try {
    const Group world{Role::world, {}};
    throw_if_failed(rank_.comm.connect(0, {&world, 1}, Deadline::after(kStartTimeout, "connecting")));
    build_part(settings_.plan, run_.resumed.checkpoint, run_.resumed.state, training.epoch(), training);
    if (!part_.is_empty()) print_run_summary(settings_, rank_);
    if (number() == 0) {
      records_ = open_records(settings_.run, files_, run_.resumed.state.step);
      requests_.refuse_claimed("the run was restarted after the request");
    }
    return std::nullopt;
  } catch (const PeersLost& error) {
    if (rank_.elastic == nullptr) throw;
    part_.engine.reset(), part_.parameters.reset();  // nothing worth keeping yet
    std::optional<MembershipChange> order =
        join_membership_change(training, {.missing = error.failure.missing}, [&] { rank_.comm.drop(0); });
    if (!order) throw;
    return order;
  }
}

TrainResult RankRun::train() {
  std::optional<MembershipChange> order;
  if (rank_.elastic != nullptr) order = rank_.elastic->order;
  const bool is_joining = order.has_value();
  part_.plan = is_joining ? order->from : settings_.plan;
  failure_time_ = std::chrono::steady_clock::now();
  RankContext context{rank_.comm, rank_.agreement, rank_.is_end_requested, nullptr,
                      newest_epoch(settings_.run).value_or(0)};
  if (rank_.elastic != nullptr)
    context.wants_membership_change = rank_.elastic->wants_membership_change,
    context.leaves = rank_.elastic->leaves, context.step_heartbeat = rank_.elastic->step_heartbeat;
  Training training(options_, settings_, hooks(), part_, is_joining ? order->state : run_.resumed.state,
                    context, rank_.events, rank_.line);
  if (!is_joining) order = begin(training);
  while (true) {
    if (order) {
      order = carry_out(*order, training);
      if (order) continue;
      if (has_left_) return {};
    }
    End end = train_on(training);
    if (TrainResult* const result = std::get_if<TrainResult>(&end)) {
      if (number() != 0) return *result;
      requests_.close("the run has ended");
      show_result(*result);
      add_to_history();
      return *result;
    }
    order = std::get<MembershipChange>(std::move(end));
  }
}

TrainResult train_rank(const PreparedRun& run, const TrainOptions& options, const RankPart& part) {
  return RankRun(run, options, part).train();
}

}  // namespace optimus
