// Communication between ranks: named collectives and messages. Each operation has a deadline and ends
// either in success or in a failure that names the missing ranks. The step program (schedule/program.h)
// decides what is sent and when; this interface only transfers it.
//
//   comm.connect(epoch, program.groups, Deadline::after(Seconds(60), "connecting"));
//   auto sum = comm.all_reduce(group, gradients, ReduceOp::sum, "gradients of block 3");
//   …                                                  // other work continues meanwhile
//   if (auto done = sum->wait(Deadline::after(…)); !done) return tl::unexpected(done.error());
//
// There are two implementations. In thread_comm.h, ranks are threads of one process (for tests, and for
// several ranks on one GPU). In c10d_comm.h, ranks are processes. They use Gloo for messages, and NCCL for
// collectives of GPU tensors if each member has a GPU (nccl_group.h). A group of one rank runs the same code.
//
// Each Comm is used by a single thread, except for the functions documented otherwise. Members of a group
// must start its operations in the same order. Every operation is recorded in the flight log, whose last
// entries are shown when a run fails.
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

enum class ReduceOp { sum, maximum };

// Why an operation did not complete: the operation, its group, the missing members, and how long this rank
// waited.
struct CommFailure {
  std::string operation;     // "all_reduce of gradients of block 3"
  std::string group;         // "shard {0 2 4}, epoch 1"
  std::vector<int> missing;  // ranks that did not participate or disconnected, as far as this rank knows
  Seconds waited;
  std::string reason;  // "connection closed by peer", "the deadline for step 12 passed", "abandoned"
};
std::string text(const CommFailure& failure);  // one line

template <typename T>
using CommOutcome = tl::expected<T, CommFailure>;

// Thrown by callers that cannot continue after a failed operation. what() describes the failure in one line.
class PeersLost : public std::runtime_error {
 public:
  explicit PeersLost(CommFailure why) : std::runtime_error(text(why)), failure(std::move(why)) {}
  CommFailure failure;
};
inline void throw_if_failed(const CommOutcome<void>& outcome) {
  if (!outcome) throw PeersLost(outcome.error());
}
template <typename T>
T value_or_throw(CommOutcome<T> outcome) {
  if (!outcome) throw PeersLost(outcome.error());
  return std::move(*outcome);
}

// An operation in flight. Owns references to its tensors, which must not be read or written until wait()
// has returned. Destroying this object earlier abandons the operation, which may still run and keeps its
// tensors alive until it ends. Must not outlive its Comm.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual bool is_done() = 0;  // never blocks
  // On CUDA, the current stream of the calling thread waits; the calling thread itself blocks only to
  // enforce the deadline. Errors that occur on the device afterwards are reported by Comm::synchronize()
  // and by every later operation of the group.
  virtual CommOutcome<void> wait(const Deadline& deadline) = 0;
  // Returns when the operation ended, which may be long before wait() returned. Valid after wait(). nullopt
  // if unknown.
  virtual std::optional<Deadline::Clock::time_point> end_time() const { return std::nullopt; }
  // Returns how long the transport (the network, through host memory, or a stream between GPUs) worked on the
  // operation after its tensors were ready. Valid after wait(), once the device has passed it. nullopt if
  // unknown or not yet known.
  virtual std::optional<Seconds> duration() const { return std::nullopt; }
};

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Switches to another membership, in which this worker may have a different rank. Closes all groups, clears
  // an earlier abandon(), and leaves no group connected. No other thread may use this object meanwhile.
  virtual void change_membership(const Membership& membership) = 0;
  // Removes the last ranks. From now on the world consists of the first `size` ranks, whose groups must be
  // connected next.
  virtual void shrink(int size) = 0;

  // Connects this rank's groups for a plan epoch, eagerly and in an order that all ranks derive without
  // communication (sorted by role and members). Members are ranks; a group with the world role and no
  // listed members has all ranks. Groups that do not contain this rank are skipped. Operations belong to
  // the epoch that was connected last; groups of earlier epochs stay until they are dropped.
  virtual CommOutcome<void> connect(int epoch, std::span<const Group> groups, const Deadline& deadline) = 0;
  // Connects the groups of a future epoch in advance, from another thread, while operations of the current
  // epoch continue. connect() then reuses these groups.
  virtual CommOutcome<void> prepare(int epoch, std::span<const Group> groups, const Deadline& deadline) = 0;
  // A rank that will not connect calls this instead of prepare(). On other ranks, a prepare() that includes
  // the world group then fails soon with this reason.
  virtual void decline(int epoch, const std::string& reason) = 0;
  // Closes the groups of this epoch. Thread-safe.
  virtual void drop(int epoch) = 0;
  // Makes all current and future waits fail at once with this reason. May be called from another thread.
  virtual void abandon(const std::string& reason) = 0;

  // Tensors are contiguous and have the same type and size on all members. `description` names the operation
  // in failures and logs.
  virtual std::unique_ptr<Pending> all_reduce(const Group& group, at::Tensor tensor, ReduceOp kind,
                                              std::string_view description) = 0;
  // `to` has the size of `from` times the number of members, in their order.
  virtual std::unique_ptr<Pending> all_gather(const Group& group, at::Tensor from, at::Tensor to,
                                              std::string_view description) = 0;
  // `from` has the size of `to` times the number of members; each member receives the sum of its shard.
  virtual std::unique_ptr<Pending> reduce_scatter(const Group& group, at::Tensor from, at::Tensor to,
                                                  std::string_view description) = 0;
  virtual std::unique_ptr<Pending> broadcast(const Group& group, at::Tensor tensor, int root,
                                             std::string_view description) = 0;
  // Transfers a message between two ranks of the epoch's world. The k-th send to a peer with a given tag
  // matches the peer's k-th receive with that tag.
  virtual std::unique_ptr<Pending> send(int peer, at::Tensor tensor, int tag,
                                        std::string_view description) = 0;
  virtual std::unique_ptr<Pending> receive(int peer, at::Tensor tensor, int tag,
                                           std::string_view description) = 0;

  // Like send() and receive(), but for a future epoch that this rank has prepared. May be called by one other
  // thread, concurrently with operations of the current epoch. The transfers must end before connect() is
  // called for the future epoch.
  virtual std::unique_ptr<Pending> send_ahead(int epoch, int peer, at::Tensor tensor, int tag,
                                              std::string_view description) = 0;
  virtual std::unique_ptr<Pending> receive_ahead(int epoch, int peer, at::Tensor tensor, int tag,
                                                 std::string_view description) = 0;

  // Returns whether any of this rank's groups in the epoch runs its collectives directly between GPUs. They
  // then take a different path than messages.
  virtual bool uses_nccl() const { return false; }
  // Waits until all started operations have also ended on the devices. Results computed with them are valid
  // only after this wait.
  virtual CommOutcome<void> synchronize(const Deadline&) { return {}; }

  virtual const FlightLog& flight_log() const = 0;
};

}  // namespace optimus
