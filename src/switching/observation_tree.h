// How observations of all ranks become one at rank 0: up a tree of eight branches, each message a step on its way, so that nobody waits.
//
//   after every step:        tree.receive();
//   after some, all alike:   if (auto seen = tree.send(own)) …        // rank 0: of `depth` times before
//
// What was sent behind one step is received behind the next, before the plan may change: no message is ever between two plans. It is
// expected from when it is sent on, so that it has come by then: asked for only when it is needed, each would be a way to and fro.
// Pictures of 100,000 ranks take six levels. One thread. Throws PeersLost.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "adapt/observation.h"
#include "comm/comm.h"

namespace optimus {

class ObservationTree {
 public:
  ObservationTree(Comm& comm, Seconds patience);
  ~ObservationTree();

  void receive();
  // `own` may be of no rank, where this one has no part in the plan.
  std::optional<Observation> send(Observation own);

 private:
  // The first message of a child: how many bytes its text has, and the text as far as it fits. What does not fit is a second one.
  struct Expected {
    int child = 0;
    at::Tensor first;
    std::unique_ptr<Pending> receive;
  };
  std::vector<int> children() const;
  void expect();
  Observation read(const Expected& from, const Deadline& deadline);
  void send_up(const Observation& all);

  Comm& comm_;
  const Seconds patience_;
  const int depth_, own_depth_;  // of the tree; of this rank, 0: the root
  std::deque<Observation> own_;  // that wait for those from below
  Observation below_;            // from there
  std::int64_t num_sent_ = 0;    // times that all have sent
  std::vector<Expected> expected_;
  std::vector<std::unique_ptr<Pending>> sends_;
};

}  // namespace optimus
