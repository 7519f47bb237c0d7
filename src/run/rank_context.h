// RankContext: the device and the outputs of one rank of a run, in any kind of process: a thread, a worker of
// this machine, a rank of a launcher, or a joining worker. RunSpec defines what the rank computes. All
// objects that a context refers to outlive the rank's work.
#pragma once

#include <functional>
#include <memory>

#include "base/event.h"
#include "base/stop_token.h"
#include "comm/comm.h"
#include "observe/status_line.h"
#include "rundir/board.h"

namespace optimus {

class ElasticRank;

struct RankContext {
  Comm& comm;
  at::Device device;
  int threads = 1;
  EventSink& events;
  StatusLine& line;  // the console on rank 0, the rank's log elsewhere
  StopToken stop{};
  // Opens the key-value board on which ranks meet outside their groups after a failure. If it is null,
  // nothing is saved then.
  std::function<std::unique_ptr<Board>()> open_board{};
  ElasticRank* elastic = nullptr;  // null if this rank fails when another rank does
};

}  // namespace optimus
