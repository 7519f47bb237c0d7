// Implements the plan parts and the training loop of rank_run.h.
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

// Returns the mean validation loss over the first few batches of the held-out data.
std::optional<double> validation_loss(const PlanPart& part, const TrainSettings& settings, int rank) {
  constexpr std::int64_t kMaxBatches = 4;
  if (!settings.validation || !settings.model.is_causal) return std::nullopt;
  NullSink null_sink;
  const LossSum total = sum_losses(*part.engine, part.plan, settings.model, *settings.validation,
                                   kMaxBatches * part.plan.batch, null_sink, rank);
  return total.count > 0 ? std::optional(total.mean()) : std::nullopt;
}

}  // namespace

EngineOptions RankRun::engine_options() const {
  EngineOptions options{.device = rank_.device, .seed = options_.seed};
  options.gemm_algorithm_file = measured_cluster_path().parent_path() / "products.json";
  options.rank = rank_index(), options.timeout = options_.timeout;
  if (rank_.elastic != nullptr) options.step_heartbeat = rank_.elastic->step_heartbeat();
  options.predicted_times = [this](const Plan& plan, const Program& program) {
    return predicted_seconds(facts_of(rank_.device).type, plan, settings_.model, program);
  };
  return options;
}

void RankRun::initialize_parameters(Parameters& parameters, const std::optional<Path>& checkpoint) const {
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
  if (!has_device(plan, rank_index())) return training.resume_from(state, epoch);
  part_.parameters = std::make_unique<Parameters>(plan, settings_.model, rank_index(), rank_.device);
  initialize_parameters(*part_.parameters, checkpoint);
  EngineOptions options = engine_options();
  const bool is_alone = num_devices(plan) == 1;
  if (!is_alone) options.comm = &rank_.comm;
  part_.engine = std::make_unique<Engine>(plan, settings_.model, *part_.parameters, options);
  // Set before connecting, so that this rank reports this state if other ranks are lost meanwhile.
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
  PartServices services;
  if (part.is_empty()) return services;
  for (SmallFile& file : small_files_)
    if (file.name == kPlanFile) file.content = plan_text(part.plan);
  const Agreement ranks = ranks_of(part);
  const auto saver = [&](const Path& folder, Retention retention, std::optional<HostMemory> hosts = {}) {
    return std::make_unique<Saver>(Saver::Target{files_, folder, retention, small_files_, std::move(hosts)},
                                   part.plan, settings_.model, *part.parameters, ranks, rank_index());
  };
  services.saver = saver(settings_.run, {options_.keep_last, options_.keep_every});
  if (const std::optional<Path> level = find_memory_level(settings_.run); options_.memory_every > 0 && level)
    services.memory = saver(*level, {.keep_last = 1});
  if (const auto hosts = find_host_memory(settings_.run); options_.memory_every > 0 && hosts)
    services.memory = saver(
        settings_.run, {},
        (worker_ids_.empty() ? *hosts : hosts->for_workers(worker_ids_)).for_ranks(storing_ranks(part.plan)));
  // Only for the first plan, because the profiled steps are among the first of the run.
  if (!options_.profile.empty() && !std::exchange(has_profiled_, true))
    services.profiler = std::make_unique<Profiler>(
        ProfileOptions{options_.profile, settings_.run, spec_.resumed.state.step, settings_.steps}, part.plan,
        settings_.model, *part.engine, *part.parameters, ranks, rank_.events, rank_.line);
  return services;
}

void RankRun::add_to_history() const {
  if (options_.history == "none" || settings_.model.is_custom() || shares_cores(hosts_of_ranks())) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  (void)record_run(options_.history,
                   {settings_.run, part_.plan, settings_.model, facts_of(rank_.device).type,
                    std::chrono::duration_cast<std::chrono::seconds>(now).count()},
                   rank_.events);
}

// If each rank has only a part of the weights, reads all weights from the checkpoint.
void RankRun::show_result(TrainResult& result) {
  if (!part_.is_empty() && num_devices(part_.plan) == 1)
    return export_and_sample(spec_, *part_.parameters, rank_, result);
  const Plan plan = one_device_plan(settings_);
  Parameters parameters(plan, settings_.model, 0, rank_.device, StorageMode::weights);
  restore(Checkpoint::open(result.checkpoint), settings_.model, Restored::weights, parameters);
  export_and_sample(spec_, parameters, rank_, result);
}

TrainingHooks RankRun::hooks() {
  return {
      [this](const Plan& plan, std::int64_t step, std::int64_t first) {
        return read_batch(*settings_.samples, plan, step, first, rank_index(), options_.sample_order);
      },
      [this](const PlanPart& part) { return validation_loss(part, settings_, rank_index()); },
      [this](const PlanPart& part) { return make_services(part); },
  };
}

std::optional<PlanSwitchController::RequestSources> RankRun::request_sources(ProposalSource* proposals) {
  if (rank_index() != 0) return std::nullopt;
  return PlanSwitchController::RequestSources{.requests = requests_,
                                              .choose = [this](const Plan& now) { return best_plan(now); },
                                              .can_drain = rank_.elastic != nullptr,
                                              .proposals = proposals};
}

MoveOptions RankRun::move_options() const {
  MoveOptions options{
      .timeout = options_.timeout, .retains_old = rank_.elastic != nullptr, .early = options_.precopy};
  if (!options_.layout.max_memory) options.spare = spare_memory(rank_.device, rank_.comm.size());
  return options;
}

void RankRun::finish_saves(Training& training, SurvivorReport& report) {
  try {
    training.finish_saves();
  } catch (const PeersLost& lost) {
    report.missing = lost.failure.missing;
  }
}

RankRun::End RankRun::train_until_membership_change(Training& training) {
  const std::unique_ptr<AdaptationController> controller = make_controller();
  PlanSwitchController switches(
      {settings_.model, rank_.comm, engine_options(), move_options()}, part_,
      with_decided_starts(spec_.script, settings_, training.completed_state().phase_begins),
      request_sources(controller.get()),
      [&](const PlanSwitch& next) {
        return memory_shortage(next, settings_.model, rank_index(), rank_.device);
      },
      training);
  SurvivorReport report;
  std::exception_ptr failure;
  try {
    std::optional<RankMonitor> monitor;
    if (is_watched())
      monitor.emplace(
          RankMonitor::Facts{rank_.comm, settings_.model, options_.timeout, engine_options().predicted_times,
                             rank_.device, controller.get(), ObservationRecord(settings_.run)},
          part_);
    StepsEnd end = training.run({.records = records_ ? &*records_ : nullptr,
                                 .switches = &switches,
                                 .monitor = monitor ? &*monitor : nullptr});
    if (end.kind != StepsEnd::Kind::membership_change) return std::move(end.result);
    report.leaves = end.drained == rank_index() || end.leaves;
    finish_saves(training, report);
  } catch (const PeersLost& lost) {
    failure = std::current_exception(), report.missing = lost.failure.missing;
    report.leaves = rank_.elastic != nullptr && rank_.stop.is_leave_requested();
    earlier_ = switches.take_previous_part();
    if (switches.has_moved()) training.resume_from(training.completed_state(), training.epoch() + 1);
  } catch (const std::exception& error) {
    failure = std::current_exception(), report.failure_reason = error.what();
  }
  if (const auto& drain = switches.drain_request())
    pending_drain_ = PendingDrain{drain->name, worker_id_of(drain->rank)};
  training.end_writing();
  write_plan_if_missing(training.epoch());
  const auto release = [&] {
    agreement_.release();
    switches.release();
  };
  if (std::optional<MembershipChange> order = join_membership_change(training, report, release))
    return *order;
  switches.release();
  if (rank_index() == 0) requests_.close("the run has failed");
  if (failure) std::rethrow_exception(failure);
  throw RuntimeFailure("ranks were lost, and no process decided how the run continues");
}

std::optional<MembershipChange> RankRun::begin(Training& training) {
  try {
    const Group world{Role::world, {}};
    throw_if_failed(rank_.comm.connect(0, {&world, 1}, Deadline::after(kStartTimeout, "connecting")));
    build_part(settings_.plan, spec_.resumed.checkpoint, spec_.resumed.state, training.epoch(), training);
    if (!part_.is_empty()) print_run_summary(spec_, rank_);
    if (rank_index() == 0) {
      records_ = open_records(settings_.run, files_, spec_.resumed.state.step);
      requests_.refuse_claimed("the run was restarted after the request");
    }
    return std::nullopt;
  } catch (const PeersLost& error) {
    if (rank_.elastic == nullptr) throw;
    part_.engine.reset(), part_.parameters.reset();  // this rank does not have any state worth keeping yet
    std::optional<MembershipChange> order =
        join_membership_change(training, {.missing = error.failure.missing}, [&] { rank_.comm.drop(0); });
    if (!order) throw;
    return order;
  }
}

TrainResult RankRun::train() {
  std::optional<MembershipChange> order;
  if (rank_.elastic != nullptr) order = rank_.elastic->first_order();
  const bool is_joining = order.has_value();
  part_.plan = is_joining ? order->from : settings_.plan;
  failure_time_ = std::chrono::steady_clock::now();
  Training training(spec_, hooks(), rank_, agreement_, part_, is_joining ? order->state : spec_.resumed.state,
                    newest_epoch(settings_.run).value_or(0));
  if (!is_joining) order = begin(training);
  while (true) {
    if (order) {
      order = carry_out(*order, training);
      if (order) continue;
      if (has_left_) return {.end = TrainEnd::left};
    }
    End end = train_until_membership_change(training);
    if (TrainResult* const result = std::get_if<TrainResult>(&end)) {
      if (rank_index() != 0) return *result;
      requests_.close("the run has ended");
      if (result->end == TrainEnd::stopped) return *result;
      show_result(*result);
      add_to_history();
      return *result;
    }
    order = std::get<MembershipChange>(std::move(end));
  }
}

TrainResult train_rank(const RunSpec& spec, const RankContext& rank) {
  StepAgreement agreement(rank.comm, spec.options.timeout);
  TrainResult result = RankRun(spec, rank, agreement).train();
  agreement.take();  // receives the votes that other ranks have already sent
  return result;
}

}  // namespace optimus
