// Merges the observations of all ranks at rank 0 through a tree with eight branches per node. Each message
// advances one level per step, so that no rank waits.
//
//   after every step:    tree.receive();
//   after some steps, the same on all ranks:
//                        if (auto merged = tree.send(own)) … // on rank 0: the result of the send() call
//                                                            // `depth` calls ago
//
// A message that is sent after one step is received after the next step, before the plan may change, so no
// message is in flight across a plan change. The receive is posted at the time of the send, so the message
// has usually arrived when it is needed. Posting the receive later would cost a round trip each time. 100,000
// ranks need six levels. Used by one thread. Throws PeersLost.
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
  // `own` must be empty (no ranks) if the plan does not use this rank. Returns the merged observation on rank
  // 0 once it is complete, and nullopt otherwise.
  std::optional<Observation> send(Observation own);

 private:
  // The first message from a child contains the size of its text and as much of the text as fits. A second
  // message contains the remaining text.
  struct PostedReceive {
    int child = 0;
    at::Tensor first;
    std::unique_ptr<Pending> receive;
  };
  std::vector<int> children() const;
  void post_receives();
  Observation read(const PostedReceive& from, const Deadline& deadline);
  void send_up(const Observation& merged);

  Comm& comm_;
  const Seconds timeout_;
  const int depth_, own_depth_;  // depth of the tree; depth of this rank, 0 for the root
  std::deque<Observation> own_;  // own observations, not yet merged with the children's
  Observation from_children_;    // merged observations of the children
  std::int64_t num_sent_ = 0;    // number of calls of send(), the same on all ranks
  std::vector<PostedReceive> posted_receives_;
  std::vector<std::unique_ptr<Pending>> sends_;
};

}  // namespace optimus
