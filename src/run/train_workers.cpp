// Implements train_workers.h.
#include "run/train_workers.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "cluster/token.h"
#include "comm/c10d_link.h"
#include "elastic/memory_level.h"
#include "elastic/notice.h"
#include "elastic/regrouping.h"
#include "elastic/salvage_host.h"
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

constexpr int kTimesMore = 2;        // growth of the run for which plan templates are prepared
constexpr Seconds kAskPatience{20};  // for a run to accept a better plan

constexpr Seconds kStoppedMargin{5};    // added to the timeout for a worker that is stopped
constexpr Seconds kStoppedPatience{2};  // for a stopped worker without which the others can continue

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

Path hand_over_path(const Path& run) { return run / "logs" / "settings.json"; }

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
    place_.token = make_token();
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
  const StorePlace& place() const { return place_; }

 private:
  StorePlace place_;
  std::optional<StoreServer> server_;
  std::unique_ptr<KeyStore> etcd_;
};

}  // namespace

SalvageFacts salvage_facts(const TrainSettings& settings, const TrainOptions& options, const Path& folder) {
  return {.run = folder,
          .memory = find_memory_level(settings.run),
          .model = settings.model,
          .retention = {options.keep_last, options.keep_every},
          .small_files = small_files(settings)};
}

Json run_settings(const PreparedRun& run, const OptionTable& table) {
  return {
      {"options", hand_over(table)},
      {"checkpoint",
       run.resumed.checkpoint ? Json(std::filesystem::absolute(*run.resumed.checkpoint).string()) : Json()}};
}

PreparedRun take_run_over(const Path& folder, const JsonView& view, bool is_gpu, TrainOptions& options,
                          OptionTable& table) {
  take_over(table, view.at("options").raw(), view.where());
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

Json train_part(const PreparedRun& run, const TrainOptions& options, const RankSeat& seat, Comm& comm,
                StatusLine& line) {
  LineSink events(line);
  StepAgreement agreement(comm, options.patience);
  const Json result = to_json(train_rank(run, options,
                                         {comm, parse_device(seat.device), seat.threads, events, line,
                                          agreement, seat.is_interrupted, seat.open_board, seat.elastic}));
  agreement.take();  // takes what the others have already sent
  return result;
}

TrainResult train_with_workers(const PreparedRun& run, const TrainOptions& options, const OptionTable& table,
                               int size, const WorkerCommand& command) {
  RealFileSystem files;
  const Path folder = std::filesystem::absolute(run.settings.run);
  value_or_throw(files.create_folders(folder / "logs"));
  const Json document = run_settings(run, table);
  value_or_throw(write_atomically(files, hand_over_path(folder), document.dump(2) + "\n"));
  const DeviceFacts device = facts_of_own(options);
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
                   .long_grace = options.patience,
                   // The ranks that wait for it report it first.
                   .patience = options.is_static ? Seconds(options.patience.value + kStoppedMargin.value)
                                                 : kStoppedPatience});
  const std::unique_ptr<Board> board =
      value_or_throw(StoreBoard::open(store.place(), Deadline::after(Seconds(30), "the run's store")));
  SalvageFacts facts = salvage_facts(run.settings, options, folder);
  std::optional<Regrouping> regrouping;
  std::optional<StoreFile> joining;
  if (!options.is_static) {
    regrouping.emplace(*board, regrouping_facts(run.settings, options, folder, device), workers.entries(),
                       run.settings.plan, newest_epoch(folder).value_or(0));
    facts.regrouping = &*regrouping;
    joining.emplace(folder, RunStorePlace{store.place()});
  }
  SalvageHost salvage(*board, files, std::move(facts));
  TrainResult result =
      parse_result(workers.wait(command.is_interrupted, &salvage, regrouping ? &*regrouping : nullptr));
  result.run = run.settings.run.string();  // the path as the user gave it
  return result;
}

Regrouping::Facts regrouping_facts(const TrainSettings& settings, const TrainOptions& options,
                                   const Path& folder, const DeviceFacts& device) {
  TrainOptions wish = options;
  wish.batch = settings.plan.batch, wish.sequence_length = settings.plan.sequence_length;
  // the given plans are of the phase in which the run started
  const bool has_phases = settings.phases.size() > 1;
  wish.precision = text(settings.plan.precision);
  return {.model = settings.model,
          .run = folder,
          .memory = find_memory_level(settings.run),
          .answers = first_answers(wish, settings.model, device, kTimesMore * num_devices(settings.plan)),
          .phases = settings.phases,
          .improve = [folder, has_phases](const Plan& plan) {
            if (has_phases) return;
            (void)ask(folder, plan_wish(plan, "improved by the planner"),
                      Deadline::after(kAskPatience, "a better plan"));
          }};
}

RunHostFacts host_facts_of(const PreparedRun& run, const TrainOptions& options, const Path& folder,
                           const DeviceFacts& device) {
  RunHostFacts facts{.regrouping = regrouping_facts(run.settings, options, folder, device),
                     .salvage = salvage_facts(run.settings, options, folder),
                     .workers = {},
                     .plan = run.settings.plan,
                     .epoch = newest_epoch(folder).value_or(0)};
  facts.salvage.may_be_cut_off = true;
  facts.regrouping.done = [folder](const RegroupOrder&, const std::vector<WorkerEntry>& members) {
    RealFileSystem files;
    (void)write_atomically(files, folder / "workers.json", workers_json(members));
  };
  return facts;
}

int train_as_worker(const WorkerPlace& place, TrainOptions& options, OptionTable& table,
                    const WorkerSignals& signals) {
  const auto work = [&](Comm& comm, StatusLine& line) {
    const Path path = hand_over_path(place.run);
    const Json document = read_json(path);
    const bool is_gpu = parse_device(place.device).is_cuda();
    const PreparedRun run =
        take_run_over(place.run, JsonView(document, path.string()), is_gpu, options, table);
    const WorkerSignals told = with_notice(signals, options.notice, process_environment());
    RankSeat seat{place.device, place.threads, told.is_interrupted,
                  [&] { return open_board(store_place(place)); }};
    if (options.is_static) {
      seat.is_interrupted = [&] { return told.is_interrupted() || told.is_told_to_leave(); };
      return train_part(run, options, seat, comm, line);
    }
    const ElasticSeat elastic({store_place(place)}, comm, place.rank, told, line);
    seat.elastic = elastic.get();
    return train_part(run, options, seat, comm, line);
  };
  try {
    return run_as_worker(place, work);
  } catch (const LeftBehind&) {
    StatusLine line = StatusLine::for_log(stderr);
    line.print("the other workers continued without this one; rejoining");
    return train_as_comer(
        {.run = place.run, .device = place.device, .threads = place.threads, .was_in = true}, options, table,
        signals, line);
  }
}

}  // namespace optimus
