// How devices talk: named collectives and messages, each with a deadline, each ending in success or in a failure that says who
// was missing. What is sent when stands in the step program (schedule/program.h); this only carries it.
//
//   comm.connect(epoch, program.groups, Deadline::after(Seconds(60), "connecting"));
//   auto sum = comm.all_reduce(group, gradients, Sum::sum, "gradients of block 3");
//   …                                                  // other work goes on meanwhile
//   if (auto done = sum->wait(Deadline::after(…)); !done) return tl::unexpected(done.error());
//
// Two ways to carry it, behind one interface: threads of one process (thread_comm.h; tests, several ranks on one GPU) and
// processes (c10d_comm.h), between which Gloo's messages go, and collectives of tensors on GPUs by NCCL (card_group.h) where
// each member has a card. A group of one rank runs the same code.
//
// One thread calls a Comm, but for prepare() and messages ahead; several may each have one. Members of a group must start its operations in the same order.
// Every operation is written into the flight log, the last ones of each rank, which a failed run shows.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "comm/flight_log.h"
#include "elastic/membership.h"
#include "schedule/program.h"

namespace optimus {

enum class Sum { sum, maximum };

// Why an operation did not end: which, on which group, who had not come, how long it was waited for.
struct CommFailure {
  std::string operation;     // "all_reduce of gradients of block 3"
  std::string group;         // "shard {0 2 4}, epoch 1"
  std::vector<int> missing;  // ranks that did not take part or went away, as far as this rank knows
  Seconds waited;
  std::string reason;  // "connection closed by peer", "the deadline for step 12 passed", "abandoned"
};
std::string text(const CommFailure& failure);  // one line

template <typename T>
using CommOutcome = tl::expected<T, CommFailure>;

// For callers to whom a failed operation is the end of the rank's work. what() is the failure's line.
class PeersLost : public std::runtime_error {
 public:
  explicit PeersLost(CommFailure why) : std::runtime_error(text(why)), failure(std::move(why)) {}
  CommFailure failure;
};
inline void done_or_throw(const CommOutcome<void>& outcome) {
  if (!outcome) throw PeersLost(outcome.error());
}
template <typename T>
T value_or_throw(CommOutcome<T> outcome) {
  if (!outcome) throw PeersLost(outcome.error());
  return std::move(*outcome);
}

// An operation under way. Holds the tensors it works on; they must not be touched until wait() has returned. Destroying it
// before that abandons the operation: it may still run, its tensors stay alive until it ends. Does not outlive its Comm.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual bool is_done() = 0;  // never blocks
  // On CUDA the calling thread's current stream waits, the host does not (except for time-outs). What goes wrong on the device
  // afterwards is told by Comm::settle, and by every later operation of the group.
  virtual CommOutcome<void> wait(const Deadline& deadline) = 0;
  // After wait(): when the work was over, which may be long before. Nothing: that is not known.
  virtual std::optional<Deadline::Clock::time_point> ended() const { return std::nullopt; }
  // After wait(), once the device has come past it: how long what carries it (a network behind host memory, a stream between cards) had it,
  // from when its tensors were there. Nothing: not known, or not yet.
  virtual std::optional<Seconds> took() const { return std::nullopt; }
};

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Another membership, with this rank's seat in it: all groups of before are closed, what was abandoned is forgotten, and nothing is
  // connected yet. Nobody else may be using this.
  virtual void regroup(const Membership& membership) = 0;
  // The last ranks leave: the world is the first `size` from here on. Groups of these are to be connected.
  virtual void shrink(int size) = 0;

  // Connects this rank's groups for a plan epoch, eagerly and in an order all ranks agree on without talking (sorted by role
  // and members); members are ranks, `world` with none listed is everybody. Groups of others may be listed, too, and are passed
  // over. Operations belong to the epoch that was connected last; groups of earlier ones stay until dropped.
  virtual CommOutcome<void> connect(int epoch, std::span<const Group> groups, const Deadline& deadline) = 0;
  // Beforehand, and from another thread: connects groups of an epoch to come while operations go on in the present one. connect()
  // then finds them.
  virtual CommOutcome<void> prepare(int epoch, std::span<const Group> groups, const Deadline& deadline) = 0;
  // Instead of that: this rank will not come. Whoever prepares the epoch with the group of everybody fails soon, with this reason.
  virtual void decline(int epoch, const std::string& reason) = 0;
  // From any thread.
  virtual void drop(int epoch) = 0;
  // From another thread: makes every wait under way and to come fail at once with this reason.
  virtual void abandon(const std::string& reason) = 0;

  // Tensors are contiguous and of one type and size on all members. `what` names the operation in failures and logs.
  virtual std::unique_ptr<Pending> all_reduce(const Group& group, at::Tensor tensor, Sum kind,
                                              std::string_view what) = 0;
  // to: as many times from as there are members, in their order.
  virtual std::unique_ptr<Pending> all_gather(const Group& group, at::Tensor from, at::Tensor to,
                                              std::string_view what) = 0;
  // from: as many times to as there are members; each gets the sum of its piece.
  virtual std::unique_ptr<Pending> reduce_scatter(const Group& group, at::Tensor from, at::Tensor to,
                                                  std::string_view what) = 0;
  virtual std::unique_ptr<Pending> broadcast(const Group& group, at::Tensor tensor, int root,
                                             std::string_view what) = 0;
  // Between two ranks of the epoch's world. The k-th send to a peer with a tag meets the k-th receive from it with that tag.
  virtual std::unique_ptr<Pending> send(int peer, at::Tensor tensor, int tag, std::string_view what) = 0;
  virtual std::unique_ptr<Pending> receive(int peer, at::Tensor tensor, int tag, std::string_view what) = 0;

  // The same in an epoch to come that this rank has prepared, beside operations of the present one: from one other thread, which must have
  // ended before connect() of that epoch.
  virtual std::unique_ptr<Pending> send_ahead(int epoch, int peer, at::Tensor tensor, int tag,
                                              std::string_view what) = 0;
  virtual std::unique_ptr<Pending> receive_ahead(int epoch, int peer, at::Tensor tensor, int tag,
                                                 std::string_view what) = 0;

  // Whether some of this rank's groups of the epoch have collectives that go straight between cards, and not the way that messages go.
  virtual bool has_cards() const { return false; }
  // Waits until all that was started has ended on the devices too: what was computed with it counts only then.
  virtual CommOutcome<void> settle(const Deadline&) { return {}; }

  virtual const FlightLog& flight_log() const = 0;
};

}  // namespace optimus
