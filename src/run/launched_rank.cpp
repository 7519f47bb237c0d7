// See launched_rank.h.
#include "run/launched_rank.h"

#include <algorithm>
#include <numeric>

#include "comm/c10d_comm.h"
#include "engine/device.h"
#include "launch/launched_memory.h"
#include "run/host_facts.h"
#include "run/join.h"
#include "run/launched_rendezvous.h"
#include "run/process_rank.h"
#include "rundir/logs.h"
#include "rundir/store_board.h"

namespace optimus {

RendezvousOptions rendezvous_of(const LaunchedTraining& training) {
  return rendezvous_options({.launch = training.launch,
                             .token_file = training.options.token_file,
                             .store = training.options.store,
                             .is_interrupted = training.is_interrupted,
                             .timeout = training.options.start_timeout});
}

std::string device_of(const std::string& kind, int local_rank) {
  return kind == "cuda" ? fmt::format("cuda:{}", local_rank % std::max(1, num_cuda_devices())) : kind;
}

int threads_of(const TrainOptions& options, const RendezvousResult& gathered, int rank) {
  if (options.threads > 0) return static_cast<int>(options.threads);
  const std::string& host = gathered.ranks[static_cast<std::size_t>(rank)].host;
  const auto ranks_on_host = std::count_if(gathered.ranks.begin(), gathered.ranks.end(),
                                           [&](const PresentRank& other) { return other.host == host; });
  return std::max(1, num_cores() / static_cast<int>(ranks_on_host));
}

std::unique_ptr<Comm> join_comm(const RendezvousResult& run, int rank, const std::string& device,
                                std::shared_ptr<KeyStore> store) {
  const PresentRank& self = run.ranks[static_cast<std::size_t>(rank)];
  return value_or_throw(make_process_comm({.rank = rank,
                                           .size = static_cast<int>(run.ranks.size()),
                                           .store = {.host = run.address.host,
                                                     .port = run.address.port,
                                                     .token = run.address.token,
                                                     .address = self.address,
                                                     .is_etcd = run.address.is_etcd,
                                                     .prefix = run.prefix,
                                                     .store = std::move(store)},
                                           .device = parse_device(device)},
                                          Deadline::after(kStartTimeout, "joining the run")));
}

std::unique_ptr<Board> board_of(const RendezvousResult& run) {
  return std::make_unique<StoreBoard>(run.store, run.prefix);
}

namespace {

std::vector<WorkerEntry> entries_of(const RendezvousResult& run, const std::string& kind) {
  std::vector<WorkerEntry> result;
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const PresentRank& present = run.ranks[rank];
    result.push_back({static_cast<int>(rank), present.pid, present.host, device_of(kind, present.local_rank),
                      log_path(static_cast<int>(rank))});
  }
  return result;
}

// Adds the workers that joined after the start of the run.
void add_joined_workers(const std::vector<WorkerEntry>& by_seat, std::vector<WorkerEntry>& workers) {
  if (by_seat.size() > workers.size())
    workers.insert(workers.end(), by_seat.begin() + std::ssize(workers), by_seat.end());
}

}  // namespace

LaunchedRankFacts launched_rank_facts(const LaunchedTraining& training, const RendezvousResult& run,
                                      const PreparedRun& prepared, const Path& folder,
                                      const std::string& kind) {
  std::vector<int> worker_ids(run.ranks.size());
  std::iota(worker_ids.begin(), worker_ids.end(), 0);
  return {.where = {run.address, run.prefix},
          .store = run.store,
          .address = run.ranks[static_cast<std::size_t>(training.launch.rank)].address,
          .worker_id = training.launch.rank,
          .worker_ids = worker_ids,
          .folder = folder,
          .signals = training.signals,
          .host_facts =
              [&training, &prepared, run, folder, kind,
               device = named_device_facts(training.options)](const std::optional<MembershipChange>& last) {
                RunHostOptions facts = host_facts_of(prepared, training.options, folder, device);
                facts.workers = entries_of(run, kind);
                if (last) add_joined_workers(workers_by_id(folder, last->membership), facts.workers);
                return facts;
              },
          .is_one_host = training.launch.is_one_host};
}

WorkerReport elastic_work(const LaunchedTraining& training, const PreparedRun& prepared, const Path& folder,
                          LaunchedElasticRank& worker_id, const RendezvousResult& run,
                          const std::string& device, std::FILE* log) {
  const int rank = training.launch.rank, threads = threads_of(training.options, run, rank);
  set_num_threads(threads);
  return report_of_work([&] { return join_comm(run, rank, device, worker_id.store()); }, log, training.line,
                        [&](Comm& comm, StatusLine& line) {
                          const RankElastic* const elastic = worker_id.begin(comm, line);
                          // Ends the watch before the Comm is destroyed.
                          const std::shared_ptr<void> ended(nullptr, [&](void*) { worker_id.end(); });
                          if (rank == 0) worker_id.host();
                          const RankPlacement place{device, threads, training.signals.is_interrupted,
                                                    [&] { return worker_id.open_board(); }, elastic};
                          return run_with_memory(prepared.settings, training.options, folder, rank, [&] {
                            return train_part(prepared, training.options, place, comm, line);
                          });
                        });
}

int rejoin(const LaunchedTraining& training, const RendezvousResult& run, const Path& folder,
           const std::string& device) {
  training.line.print("the other ranks continued without this one; rejoining");
  return train_as_joining_worker({.run = folder,
                                  .device = device,
                                  .threads = threads_of(training.options, run, training.launch.rank),
                                  .was_member = true},
                                 training.options, training.table, training.signals, training.line);
}

}  // namespace optimus
