// Communication between processes, one rank per process. Ranks find each other through a store (StoreServer,
// c10d_link.h) and exchange messages over Gloo; collectives are built from messages (exchange.h).
//
//   StoreServer server;  // in the process that starts the others
//   auto comm = make_process_comm({.rank = 2, .size = 4, .store = {.port = server.port(), .token = token}},
//                                 deadline);
//
// Collectives of CUDA tensors use NCCL if each member has its own GPU (nccl_group.h); otherwise they go
// through host memory, as messages always do. Each group has a thread that runs its multi-stage operations,
// so they make progress while the rank computes. A rank whose operation fails writes a note to the store. The
// failure reports of the other ranks can then name the missing rank instead of a rank that merely gave up
// waiting for it.
#pragma once

#include <memory>

#include "comm/c10d_link.h"
#include "comm/comm.h"
#include "comm/exchange.h"

namespace optimus {

struct ProcessCommOptions {
  int rank = 0, size = 1;  // `rank` is also the worker id (Comm::change_membership)
  StoreClient::StoreEndpoint store;
  AlgorithmThresholds sizes{};
  at::Device device{at::kCPU};  // the device of this rank
};

// Fails if the store is not reached before the deadline.
Outcome<std::unique_ptr<Comm>> make_process_comm(const ProcessCommOptions& options, const Deadline& deadline);

}  // namespace optimus
