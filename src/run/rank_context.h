// RankContext: the device and the outputs of one rank of a run. The rank may be a thread, a worker on this
// machine, a process started by a launcher, or a joining worker. RunSpec defines what the rank computes. All
// objects to which a context refers outlive the rank's work.
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
  // Opens the key-value board through which ranks communicate after a failure, when their groups no longer
  // work. If null, a failure does not save an emergency checkpoint.
  std::function<std::unique_ptr<Board>()> open_board{};
  ElasticRank* elastic = nullptr;  // null if this rank fails when another rank fails
};

}  // namespace optimus
