// One rank of a training that an external launcher started (train_launched.h): how the rank joins the run,
// which device it uses, and how it works in a run that continues when ranks are lost. Used by rank 0 and by
// all other ranks.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "base/event.h"
#include "base/stop_token.h"
#include "cluster/launcher.h"
#include "launch/rendezvous.h"
#include "observe/status_line.h"
#include "run/elastic_rank.h"
#include "run/train_rank.h"
#include "run/worker.h"
#include "rundir/board.h"
#include "settings/options.h"

namespace optimus {

struct LaunchedTraining {
  LaunchInfo launch;  // with more than one rank
  TrainOptions& options;
  OptionTable& table;
  EventSink& events;
  StatusLine& line;
  StopToken stop{};  // a request to leave ends a static run
};

RendezvousOptions rendezvous_of(const LaunchedTraining& training);

// If the launcher does not assign a GPU to each rank, the ranks on a host use its GPUs in order.
std::string device_of(const std::string& kind, int local_rank);
int threads_of(const TrainOptions& options, const RendezvousResult& rendezvous, int rank);

std::unique_ptr<Comm> join_comm(const RendezvousResult& run, int rank, const std::string& device,
                                std::shared_ptr<KeyStore> store = nullptr);
std::unique_ptr<Board> board_of(const RendezvousResult& run);

// For a run that continues when ranks are lost. All arguments must outlive the result.
LaunchedRankFacts launched_rank_facts(const LaunchedTraining& training, const RendezvousResult& run,
                                      const RunSpec& spec, const Path& folder, const std::string& kind);
// Runs the rank's work. The rank's watch exists until the work has ended. If this process hosts the store, so
// does the store.
WorkerReport elastic_work(const LaunchedTraining& training, const RunSpec& spec, const Path& folder,
                          LaunchedElasticRank& elastic, const RendezvousResult& run,
                          const std::string& device, std::FILE* log);
// Rejoins the run after the other ranks have continued without this rank. Returns the exit code.
int rejoin(const LaunchedTraining& training, const RendezvousResult& run, const Path& folder,
           const std::string& device);

}  // namespace optimus
