// Communication between processes: each rank of a run is one. They find each other in a store that somebody hosts (StoreServer,
// c10d_link.h) and exchange messages over Gloo; collectives are built from messages (exchange.h).
//
//   StoreServer server;                                            // the process that starts the others
//   auto comm = make_process_comm({.rank = 2, .size = 4, .store = {.port = server.port(), .token = token}}, deadline);
//
// Collectives of CUDA tensors go by NCCL where each member has a card (card_group.h), else, as messages do, through the
// processor's memory. Operations of several stages are driven by a thread of their group, so
// they go on while the rank computes. A rank that fails leaves a note in the store: the others say who was missing, not who
// merely gave up.
#pragma once

#include <memory>

#include "comm/c10d_link.h"
#include "comm/comm.h"
#include "comm/exchange.h"

namespace optimus {

struct ProcessCommOptions {
  int rank = 0, size = 1;  // the rank is its seat (Comm::regroup), too
  StoreClient::Place store;
  ExchangeSizes sizes{};
  at::Device device{at::kCPU};  // the rank's own
};

// Fails when the store is not reached in time.
Outcome<std::unique_ptr<Comm>> make_process_comm(const ProcessCommOptions& options, const Deadline& deadline);

}  // namespace optimus
