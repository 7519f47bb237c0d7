// Implements train_workers.h.
#include "run/train_workers.h"

#include <algorithm>

#include "base/error.h"
#include "cluster/token.h"
#include "comm/c10d_link.h"
#include "elastic/emergency_checkpoint_host.h"
#include "elastic/membership_coordinator.h"
#include "elastic/preemption_notice.h"
#include "engine/device.h"
#include "launch/store_file.h"
#include "launch/workers.h"
#include "observe/progress.h"
#include "run/elastic_rank.h"
#include "run/host_facts.h"
#include "run/join.h"
#include "run/process_rank.h"
#include "run/train_rank.h"
#include "run/worker.h"
#include "rundir/plan_files.h"
#include "rundir/store_board.h"
#include "store/key_store.h"

namespace optimus {
namespace {

constexpr Seconds kStoppedMargin{5};   // added to the timeout for a worker that is stopped
constexpr Seconds kStoppedTimeout{2};  // for a stopped worker, if the other workers can continue without it

// The store of the run. This process hosts it, or it is a prefix in etcd that is cleared at the end.
class RunStore {
 public:
  explicit RunStore(const std::string& store_option) {
    address_.token = generate_token();
    if (store_option.empty()) {
      server_.emplace(StoreServerOptions{.token = address_.token});
      address_.port = server_->port();
    } else {
      address_ = parse_store(store_option, address_.token);
      etcd_ = value_or_throw(open_store(address_, Deadline::after(Seconds(10), "etcd")));
    }
  }
  ~RunStore() {
    if (etcd_ != nullptr) (void)etcd_->clear();
  }
  RunStore(const RunStore&) = delete;
  const StoreAddress& address() const { return address_; }

 private:
  StoreAddress address_;
  std::optional<StoreServer> server_;
  std::unique_ptr<KeyStore> etcd_;
};

}  // namespace

TrainResult train_with_workers(const RunSpec& spec, const OptionTable& table, int size,
                               const WorkerCommand& command) {
  RealFileSystem files;
  const TrainOptions& options = spec.options;
  const Path folder = std::filesystem::absolute(spec.settings.run);
  value_or_throw(files.create_folders(folder / "logs"));
  const Json document = run_settings(spec, table);
  value_or_throw(write_atomically(files, run_settings_path(folder), document.dump(2) + "\n"));
  const DeviceFacts device = named_device_facts(options);
  const RunStore store(options.store);
  const int threads =
      options.threads > 0 ? static_cast<int>(options.threads) : std::max(1, num_cores() / size);
  Workers workers({.program = command.program,
                   .arguments = command.words,
                   .run = folder,
                   .devices = devices_of_ranks(options.device, size),
                   .threads = threads,
                   .host = store.address().host,
                   .port = store.address().port,
                   .is_etcd = store.address().is_etcd,
                   .token = store.address().token,
                   .long_grace = options.timeout,
                   // Ranks that wait for a stopped worker report the worker before this timeout.
                   .timeout = options.is_static ? Seconds(options.timeout.value + kStoppedMargin.value)
                                                : kStoppedTimeout});
  const std::unique_ptr<Board> board =
      value_or_throw(StoreBoard::open(store.address(), Deadline::after(Seconds(30), "the run's store")));
  EmergencyCheckpointOptions checkpoint_options = emergency_checkpoint_options(spec, folder);
  std::optional<MembershipCoordinator> coordinator;
  std::optional<StoreFile> store_file;
  if (!options.is_static) {
    coordinator.emplace(*board, coordinator_facts(spec, folder, device), workers.entries(),
                        spec.settings.plan, newest_epoch(folder).value_or(0));
    checkpoint_options.coordinator = &*coordinator;
    store_file.emplace(folder, RunStoreAddress{store.address()});
  }
  EmergencyCheckpointHost emergency_checkpoint(*board, files, std::move(checkpoint_options));
  TrainResult result =
      workers.wait(command.stop, &emergency_checkpoint, coordinator ? &*coordinator : nullptr);
  result.run = spec.settings.run.string();  // the path as the user gave it
  return result;
}

int train_as_worker(const WorkerSpec& worker, TrainOptions& options, OptionTable& table,
                    const StopToken& stop) {
  const auto work = [&](Comm& comm, StatusLine& line) {
    const Path path = run_settings_path(worker.run);
    const Json document = read_json(path);
    const at::Device device = parse_device(worker.device);
    const RunSpec spec =
        read_run_settings(worker.run, JsonView(document, path.string()), device.is_cuda(), options, table);
    const StopToken with_notice = with_preemption_notice(stop, options.notice, process_environment());
    StatusLineSink events(line);
    RankContext rank{comm, device, worker.threads, events, line, with_notice, [&] {
                       return open_board(store_address_of(worker));
                     }};
    if (options.is_static) {
      rank.stop = with_notice.with_leave_as_stop();
      return train_rank(spec, rank);
    }
    HostedElasticRank elastic({store_address_of(worker)}, comm, worker.rank);
    rank.elastic = &elastic;
    return train_rank(spec, rank);
  };
  try {
    return run_as_worker(worker, work);
  } catch (const ExcludedFromRun&) {
    StatusLine line = StatusLine::for_log(stderr);
    line.print("the other workers continued without this one; rejoining");
    return train_as_joining_worker(
        {.run = worker.run, .device = worker.device, .threads = worker.threads, .was_member = true}, options,
        table, stop, line);
  }
}

}  // namespace optimus
