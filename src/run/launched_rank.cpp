// See launched_rank.h.
#include "run/launched_rank.h"

#include <algorithm>
#include <numeric>

#include "comm/c10d_comm.h"
#include "engine/device.h"
#include "launch/launched_memory.h"
#include "observe/progress.h"
#include "run/host_facts.h"
#include "run/join.h"
#include "run/launched_rendezvous.h"
#include "rundir/logs.h"
#include "rundir/store_board.h"

namespace optimus {

RendezvousOptions rendezvous_of(const LaunchedTraining& training) {
  return rendezvous_options({.launch = training.launch,
                             .token_file = training.options.token_file,
                             .store = training.options.store,
                             .stop = training.stop,
                             .timeout = training.options.start_timeout});
}

std::string device_of(const std::string& kind, int local_rank) {
  return kind == "cuda" ? fmt::format("cuda:{}", local_rank % std::max(1, num_cuda_devices())) : kind;
}

int threads_of(const TrainOptions& options, const RendezvousResult& rendezvous, int rank) {
  if (options.threads > 0) return static_cast<int>(options.threads);
  const std::string& host = rendezvous.ranks[static_cast<std::size_t>(rank)].host;
  const auto ranks_on_host = std::count_if(rendezvous.ranks.begin(), rendezvous.ranks.end(),
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

// Adds the workers that joined after the run started.
void add_joined_workers(const std::vector<WorkerEntry>& workers_by_id, std::vector<WorkerEntry>& workers) {
  if (workers_by_id.size() > workers.size())
    workers.insert(workers.end(), workers_by_id.begin() + std::ssize(workers), workers_by_id.end());
}

}  // namespace

LaunchedRankFacts launched_rank_facts(const LaunchedTraining& training, const RendezvousResult& run,
                                      const RunSpec& spec, const Path& folder, const std::string& kind) {
  std::vector<int> worker_ids(run.ranks.size());
  std::iota(worker_ids.begin(), worker_ids.end(), 0);
  return {.store_address = {run.address, run.prefix},
          .store = run.store,
          .address = run.ranks[static_cast<std::size_t>(training.launch.rank)].address,
          .worker_id = training.launch.rank,
          .worker_ids = worker_ids,
          .folder = folder,
          .stop = training.stop,
          .host_facts =
              [&spec, run, folder, kind,
               device = named_device_facts(spec.options)](const std::optional<MembershipChange>& last) {
                RunHostOptions facts = host_facts_of(spec, folder, device);
                facts.workers = entries_of(run, kind);
                if (last) add_joined_workers(workers_by_id(folder, last->membership), facts.workers);
                return facts;
              },
          .is_one_host = training.launch.is_one_host};
}

WorkerReport elastic_work(const LaunchedTraining& training, const RunSpec& spec, const Path& folder,
                          LaunchedElasticRank& elastic, const RendezvousResult& run,
                          const std::string& device, std::FILE* log) {
  const int rank = training.launch.rank, threads = threads_of(spec.options, run, rank);
  set_num_threads(threads);
  const auto work = [&](Comm& comm, StatusLine& line) {
    elastic.begin(comm);
    const std::shared_ptr<void> end_guard(nullptr,
                                          [&](void*) { elastic.end(); });  // before the Comm is destroyed
    if (rank == 0) elastic.host();
    StatusLineSink events(line);
    const RankContext context{comm,
                              parse_device(device),
                              threads,
                              events,
                              line,
                              training.stop,
                              [&] { return elastic.open_board(); },
                              &elastic};
    return run_with_memory(spec, folder, rank, [&] { return train_rank(spec, context); });
  };
  return report_of_work([&] { return join_comm(run, rank, device, elastic.store()); }, log, training.line,
                        work);
}

int rejoin(const LaunchedTraining& training, const RendezvousResult& run, const Path& folder,
           const std::string& device) {
  training.line.print("the other ranks continued without this one; rejoining");
  return train_as_joining_worker({.run = folder,
                                  .device = device,
                                  .threads = threads_of(training.options, run, training.launch.rank),
                                  .was_member = true},
                                 training.options, training.table, training.stop, training.line);
}

}  // namespace optimus
