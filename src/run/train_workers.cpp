// Implements train_workers.h.
#include "run/train_workers.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "cluster/token.h"
#include "comm/c10d_link.h"
#include "elastic/emergency_checkpoint_host.h"
#include "elastic/membership_coordinator.h"
#include "elastic/memory_level.h"
#include "elastic/preemption_notice.h"
#include "engine/device.h"
#include "launch/store_file.h"
#include "launch/workers.h"
#include "observe/progress.h"
#include "plan/layouts.h"
#include "reshard/control.h"
#include "reshard/switch_script.h"
#include "run/join.h"
#include "run/train_threads.h"
#include "run/training.h"
#include "run/worker.h"
#include "rundir/plan_files.h"
#include "rundir/store_board.h"
#include "settings/choose_plan.h"
#include "settings/phases.h"
#include "store/key_store.h"

namespace optimus {
namespace {

constexpr int kGrowthFactor = 2;        // growth of the run for which plan templates are prepared
constexpr Seconds kRequestTimeout{20};  // for a run to accept a better plan

constexpr Seconds kStoppedMargin{5};   // added to the timeout for a worker that is stopped
constexpr Seconds kStoppedTimeout{2};  // for a stopped worker without which the others can continue

Json to_json(const TrainResult& result) {
  return {{"run", result.run},
          {"checkpoint", result.checkpoint},
          {"steps", result.steps},
          {"loss", result.loss},
          {"validation_loss", result.validation_loss ? Json(*result.validation_loss) : Json()},
          {"tokens_per_second", result.tokens_per_second},
          {"sample", result.sample}};
}

}  // namespace

Path run_settings_path(const Path& run) { return run / "logs" / "settings.json"; }

TrainResult parse_result(const Json& json) {
  const JsonView view(json, "the result of rank 0");
  TrainResult result;
  result.run = view.at("run").text(), result.checkpoint = view.at("checkpoint").text();
  result.steps = view.at("steps").integer();
  result.loss = view.number_or("loss", std::numeric_limits<double>::quiet_NaN());  // NaN is null in JSON
  if (const auto loss = view.find("validation_loss")) result.validation_loss = loss->number();
  result.tokens_per_second = view.number_or("tokens_per_second", 0);
  result.sample = view.at("sample").text();
  return result;
}

namespace {

// The store of the run: one hosted here, or a prefix in etcd that is cleared at the end.
class RunStore {
 public:
  explicit RunStore(const std::string& named) {
    place_.token = generate_token();
    if (named.empty()) {
      server_.emplace(StoreServerOptions{.token = place_.token});
      place_.port = server_->port();
    } else {
      place_ = parse_store(named, place_.token);
      etcd_ = value_or_throw(open_store(place_, Deadline::after(Seconds(10), "etcd")));
    }
  }
  ~RunStore() {
    if (etcd_ != nullptr) (void)etcd_->clear();
  }
  RunStore(const RunStore&) = delete;
  const StoreAddress& place() const { return place_; }

 private:
  StoreAddress place_;
  std::optional<StoreServer> server_;
  std::unique_ptr<KeyStore> etcd_;
};

}  // namespace

EmergencyCheckpointOptions salvage_facts(const TrainSettings& settings, const TrainOptions& options,
                                         const Path& folder) {
  return {.run = folder,
          .memory = find_memory_level(settings.run),
          .model = settings.model,
          .retention = {options.keep_last, options.keep_every},
          .small_files = small_files(settings)};
}

Json run_settings(const PreparedRun& run, const OptionTable& table) {
  return {
      {"options", serialize_options(table)},
      {"checkpoint",
       run.resumed.checkpoint ? Json(std::filesystem::absolute(*run.resumed.checkpoint).string()) : Json()}};
}

PreparedRun read_run_settings(const Path& folder, const JsonView& view, bool is_gpu, TrainOptions& options,
                              OptionTable& table) {
  restore_options(table, view.at("options").raw(), view.where());
  PreparedRun run;
  if (const auto checkpoint = view.find("checkpoint")) {
    run.resumed.checkpoint = checkpoint->text();
    run.resumed.state =
        parse_training_state(Checkpoint::open(*run.resumed.checkpoint).small_file(kTrainingStateFile),
                             (*run.resumed.checkpoint / kTrainingStateFile).string());
  }
  options.run = folder;
  options.plan = folder / "plan.json";
  NullSink quiet;  // the starting process has printed everything already
  run.settings =
      resolve(options, {.is_gpu = is_gpu}, &table, quiet, run.resumed.checkpoint, run.resumed.state);
  run.settings.phase_plans = read_phase_plans(folder, run.settings);
  run.script = script_of(options, run.settings);
  return run;
}

Json train_part(const PreparedRun& run, const TrainOptions& options, const RankPlacement& worker_id,
                Comm& comm, StatusLine& line) {
  StatusLineSink events(line);
  StepAgreement agreement(comm, options.timeout);
  const Json result =
      to_json(train_rank(run, options,
                         {comm, parse_device(worker_id.device), worker_id.threads, events, line, agreement,
                          worker_id.is_interrupted, worker_id.open_board, worker_id.elastic}));
  agreement.take();  // takes what the others have already sent
  return result;
}

TrainResult train_with_workers(const PreparedRun& run, const TrainOptions& options, const OptionTable& table,
                               int size, const WorkerCommand& command) {
  RealFileSystem files;
  const Path folder = std::filesystem::absolute(run.settings.run);
  value_or_throw(files.create_folders(folder / "logs"));
  const Json document = run_settings(run, table);
  value_or_throw(write_atomically(files, run_settings_path(folder), document.dump(2) + "\n"));
  const DeviceFacts device = named_device_facts(options);
  const RunStore store(options.store);
  const int threads =
      options.threads > 0 ? static_cast<int>(options.threads) : std::max(1, num_cores() / size);
  Workers workers({.program = command.program,
                   .words = command.words,
                   .run = folder,
                   .devices = devices_of_ranks(options.device, size),
                   .threads = threads,
                   .host = store.place().host,
                   .port = store.place().port,
                   .is_etcd = store.place().is_etcd,
                   .token = store.place().token,
                   .long_grace = options.timeout,
                   // The ranks that wait for it report it first.
                   .timeout = options.is_static ? Seconds(options.timeout.value + kStoppedMargin.value)
                                                : kStoppedTimeout});
  const std::unique_ptr<Board> board =
      value_or_throw(StoreBoard::open(store.place(), Deadline::after(Seconds(30), "the run's store")));
  EmergencyCheckpointOptions facts = salvage_facts(run.settings, options, folder);
  std::optional<MembershipCoordinator> coordinator;
  std::optional<StoreFile> joining;
  if (!options.is_static) {
    coordinator.emplace(*board, regrouping_facts(run.settings, options, folder, device), workers.entries(),
                        run.settings.plan, newest_epoch(folder).value_or(0));
    facts.coordinator = &*coordinator;
    joining.emplace(folder, RunStoreAddress{store.place()});
  }
  EmergencyCheckpointHost emergency_checkpoint(*board, files, std::move(facts));
  TrainResult result = parse_result(
      workers.wait(command.is_interrupted, &emergency_checkpoint, coordinator ? &*coordinator : nullptr));
  result.run = run.settings.run.string();  // the path as the user gave it
  return result;
}

MembershipCoordinator::Facts regrouping_facts(const TrainSettings& settings, const TrainOptions& options,
                                              const Path& folder, const DeviceFacts& device) {
  TrainOptions proposal = options;
  proposal.batch = settings.plan.batch, proposal.sequence_length = settings.plan.sequence_length;
  // the given plans are of the phase in which the run started
  const bool has_phases = settings.phases.size() > 1;
  proposal.precision = text(settings.plan.precision);
  return {
      .model = settings.model,
      .run = folder,
      .memory = find_memory_level(settings.run),
      .answers = first_answers(proposal, settings.model, device, kGrowthFactor * num_devices(settings.plan)),
      .phases = settings.phases,
      .propose_improvement = [folder, has_phases](const Plan& plan) {
        if (has_phases) return;
        (void)ask(folder, plan_request_json(plan, "improved by the planner"),
                  Deadline::after(kRequestTimeout, "a better plan"));
      }};
}

RunHostOptions host_facts_of(const PreparedRun& run, const TrainOptions& options, const Path& folder,
                             const DeviceFacts& device) {
  RunHostOptions facts{.coordinator = regrouping_facts(run.settings, options, folder, device),
                       .emergency_checkpoint = salvage_facts(run.settings, options, folder),
                       .workers = {},
                       .plan = run.settings.plan,
                       .epoch = newest_epoch(folder).value_or(0)};
  facts.emergency_checkpoint.may_be_partitioned = true;
  facts.coordinator.done = [folder](const MembershipChange&, const std::vector<WorkerEntry>& members) {
    RealFileSystem files;
    (void)write_atomically(files, folder / "workers.json", workers_json(members));
  };
  return facts;
}

int train_as_worker(const WorkerSpec& place, TrainOptions& options, OptionTable& table,
                    const WorkerSignals& signals) {
  const auto work = [&](Comm& comm, StatusLine& line) {
    const Path path = run_settings_path(place.run);
    const Json document = read_json(path);
    const bool is_gpu = parse_device(place.device).is_cuda();
    const PreparedRun run =
        read_run_settings(place.run, JsonView(document, path.string()), is_gpu, options, table);
    const WorkerSignals told = with_preemption_notice(signals, options.notice, process_environment());
    RankPlacement worker_id{place.device, place.threads, told.is_interrupted,
                            [&] { return open_board(store_place(place)); }};
    if (options.is_static) {
      worker_id.is_interrupted = [&] { return told.is_interrupted() || told.is_leave_requested(); };
      return train_part(run, options, worker_id, comm, line);
    }
    const ElasticRank elastic({store_place(place)}, comm, place.rank, told, line);
    worker_id.elastic = elastic.get();
    return train_part(run, options, worker_id, comm, line);
  };
  try {
    return run_as_worker(place, work);
  } catch (const ExcludedFromRun&) {
    StatusLine line = StatusLine::for_log(stderr);
    line.print("the other workers continued without this one; rejoining");
    return train_as_joining_worker(
        {.run = place.run, .device = place.device, .threads = place.threads, .was_member = true}, options,
        table, signals, line);
  }
}

}  // namespace optimus
