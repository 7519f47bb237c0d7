// Merges the observations of all ranks at rank 0 through a tree with eight branches per node. Each message
// advances one level per step, so that no rank waits.
//
//   after every step:    tree.receive();
//   after some steps, the same on all ranks:
//                        if (auto seen = tree.send(own)) …   // rank 0: of `depth` calls before
//
// A message that is sent after one step is received after the next, before the plan may change, so no message
// is in flight across two plans. Its receive is posted when it is sent, so it has arrived by then; posting it
// only when needed would cost a round trip each. 100,000 ranks need six levels. One thread. Throws PeersLost.
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
  ObservationTree(Comm& comm, Seconds timeout);
  ~ObservationTree();

  void receive();
  // `own` may be without a rank, if this one has no part in the plan.
  std::optional<Observation> send(Observation own);

 private:
  // The first message of a child: the size of its text, and as much of the text as fits. A second message
  // carries the rest.
  struct PostedReceive {
    int child = 0;
    at::Tensor first;
    std::unique_ptr<Pending> receive;
  };
  std::vector<int> children() const;
  void post_receives();
  Observation read(const PostedReceive& from, const Deadline& deadline);
  void send_up(const Observation& all);

  Comm& comm_;
  const Seconds timeout_;
  const int depth_, own_depth_;  // of the tree; of this rank (0: the root)
  std::deque<Observation> own_;  // waiting for observations of the children
  Observation from_children_;    // merged observations of the children
  std::int64_t num_sent_ = 0;    // calls of send(), the same on all ranks
  std::vector<PostedReceive> posted_receives_;
  std::vector<std::unique_ptr<Pending>> sends_;
};

}  // namespace optimus
