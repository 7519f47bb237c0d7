// Collectives that are built from messages. This file has one member's part of a collective: its messages and
// its additions. Values are added in member order, either by one member or identically by all members, so all
// members get bitwise equal results.
//
//   all_gather       each member sends its row directly into its place at all other members
//   reduce_scatter   each member sends shard p to member p, which adds the shards, one segment at a time
//   all_reduce       small: each member sends its row to all other members; all add in the same order
//                    large: reduce_scatter; each sum is sent to all members as soon as it is ready
//   broadcast        the root sends to all other members
//
// In large groups, broadcasts and small all_reduces use a tree, because all-to-all would need too many
// messages for a few bytes. The depth of the tree is logarithmic in the group size. An all_reduce sends all
// rows up to the first member, which adds them and sends the sum down.
//
// Groups, deadlines and the detection of missing members are in c10d_comm.cpp.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "comm/interrupter.h"
#include "comm/link.h"
#include "comm/operation.h"

namespace optimus {

// Sizes at which the algorithm changes. The times below are in microseconds, measured with bench_comm on two
// cores (docs/contribute/decisions/0008-collectives-from-messages.md):
//
//   all_reduce of     2 processes: Gloo   whole   by pieces     4 processes: Gloo   whole   by pieces
//   1 KiB                           347     161         381                  5666    1835        5119
//   64 KiB                          426     285         472                  4774    1398        4111
//   256 KiB                         600     494         686                  6778    3484        3812
//   1 MiB                          1350    1346        1364                  7320    7987        7413
//   4 MiB                          4026    6604        4358                 19300   30484       10457
//   16 MiB                        21370   29832       24508                 45882  117014       44051
struct AlgorithmThresholds {
  // An all_reduce of at least this many bytes is split into one shard per member.
  std::int64_t split_min_bytes = 512 << 10;
  std::int64_t segment_bytes = 4 << 20;  // bytes of a shard that are received and added at a time
  int max_direct_members = 8;            // groups with more members send small tensors along a tree
  // An all_reduce of at most this many bytes uses the tree, whose root stores the row of every member.
  std::int64_t tree_max_bytes = 4 << 10;
};

// Pool of scratch memory for operations, because allocating new memory takes longer than the additions.
// Thread-safe.
class ScratchMemory {
 public:
  at::Tensor take(std::int64_t bytes);  // uint8, at least `bytes` elements
  void give_back(at::Tensor memory);

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> free_;
};

class MemberExchange {
 public:
  // `number` is the index of the operation in its group. `link` and `scratch` must outlive this object.
  MemberExchange(CommOperation operation, GroupLink& link, ScratchMemory& scratch, std::int64_t number,
                 AlgorithmThresholds sizes);
  // A message to or from the member with group index `peer`.
  MemberExchange(CommOperation message, GroupLink& link, ScratchMemory& scratch, int peer, int tag);
  ~MemberExchange();

  const CommOperation& operation() const { return operation_; }
  // Returns whether the operation has further stages, which make progress only in run().
  bool has_stages() const;

  // Starts all messages that can be started. Does not block. Throws LinkError.
  void begin();
  // Runs the remaining stages; blocks. Throws LinkError.
  void run(Interrupter& interrupter, const Interrupter::Limits& limits);

  // Called after a LinkError. Returns the members that have not done their part of the operation. Closes the
  // link's connections, so that the other members detect the failure.
  struct Unfinished {
    std::set<int> closed, silent;  // group indices of members
    bool is_relayed = false;       // a silent member may itself be waiting for another member
  };
  Unfinished give_up();

 private:
  struct Message {
    std::unique_ptr<LinkMessage> transfer;
    int member_index = 0;
    bool is_receive = false, is_second = false;  // `is_second`: belongs to the second stage of an all_reduce
    bool is_done = false;
  };
  using MessageIndices = std::vector<std::size_t>;  // indices into messages_

  std::size_t send(int member_index, const at::Tensor& row, int tag);
  std::size_t receive(int member_index, const at::Tensor& row, int tag);
  void wait_for(const MessageIndices& indices, Interrupter& interrupter, const Interrupter::Limits& limits);

  bool is_split() const;
  bool is_tree() const;
  at::Tensor piece(const at::Tensor& row, int member_index) const;
  at::Tensor segment(const at::Tensor& piece, std::int64_t index) const;
  std::int64_t num_segments(const at::Tensor& piece) const;
  at::Tensor scratch_row(std::int64_t slot, std::int64_t bytes) const;

  void begin_unsplit();  // small all_reduce
  void begin_pieces();   // reduce_scatter, large all_reduce
  void begin_gather();
  void begin_broadcast();
  void begin_tree();
  void run_tree(Interrupter& interrupter, const Interrupter::Limits& limits);
  void send_to_children();
  at::Tensor tree_rows(int begin, int end) const;
  void receive_segment(std::int64_t index);
  void add_unsplit();
  void add_segment(std::int64_t index);
  // Returns the other members, starting with the one after this member, so that members start with different
  // peers.
  std::vector<int> peers() const;

  const CommOperation operation_;
  GroupLink& link_;
  ScratchMemory& scratch_;
  const int size_, member_index_;
  const int tag_, peer_ = -1;
  const AlgorithmThresholds sizes_;
  at::Tensor memory_;
  std::vector<Message> messages_;
  std::vector<MessageIndices> segments_;  // [segment]: the receives of each started segment
};

}  // namespace optimus
