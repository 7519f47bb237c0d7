// Collectives built from messages: what one member sends, receives and adds. Sums are taken in the order of members by one of them,
// or alike by all, so all get the same bits.
//
//   all_gather       everybody sends its row to everybody, straight into place
//   reduce_scatter   everybody sends piece p to member p, which adds them up, some at a time
//   all_reduce       small: everybody sends all to everybody, all add up alike
//                    large: reduce_scatter, and each sum goes out to everybody as soon as it is there
//   broadcast        the root sends to everybody
//
// In groups of many, where everybody to everybody would be too many messages for a few bytes, both go along a tree, whose depth is
// the logarithm of the group: small all_reduces send rows up, which the first member adds, and the sum down.
//
// Not here: groups, deadlines, who is missing (c10d_comm.cpp).
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "comm/interrupter.h"
#include "comm/link.h"
#include "comm/operation.h"

namespace optimus {

// What the algorithms choose by. Measured with bench_comm on two cores, microseconds (docs/decisions/0008-collectives-from-messages.md):
//
//   all_reduce of     2 processes: Gloo   whole   by pieces     4 processes: Gloo   whole   by pieces
//   1 KiB                           347     161         381                  5666    1835        5119
//   64 KiB                          426     285         472                  4774    1398        4111
//   256 KiB                         600     494         686                  6778    3484        3812
//   1 MiB                          1350    1346        1364                  7320    7987        7413
//   4 MiB                          4026    6604        4358                 19300   30484       10457
//   16 MiB                        21370   29832       24508                 45882  117014       44051
struct ExchangeSizes {
  std::int64_t split_from = 512 << 10;  // an all_reduce of so many bytes goes by pieces
  std::int64_t segment = 4 << 20;       // bytes of a piece that are added up at a time
  int most_direct = 8;                  // members; more send little along a tree
  std::int64_t tree_up_to =
      4 << 10;  // bytes of an all_reduce along the tree: its root holds as much of each member
};

// Memory that is lent to operations and taken back: fresh memory costs more than adding it up. Any thread.
class Scratch {
 public:
  at::Tensor take(std::int64_t bytes);  // of bytes; at least as many
  void give_back(at::Tensor memory);

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> free_;
};

class MemberExchange {
 public:
  // number: of the operation in its group. link and scratch must outlive this.
  MemberExchange(CommOperation operation, Wire& link, Scratch& scratch, std::int64_t number,
                 ExchangeSizes sizes);
  // A message to or from the member at `peer`, with a tag of its own.
  MemberExchange(CommOperation message, Wire& link, Scratch& scratch, int peer, int tag);
  ~MemberExchange();

  const CommOperation& operation() const { return operation_; }
  // Whether it stands still unless somebody runs it.
  bool has_stages() const;

  // Starts all messages that can be. Does not block. Throws LinkError.
  void begin();
  // The rest; blocks. Throws LinkError.
  void run(Interrupter& interrupter, const Interrupter::Limits& limits);

  // After a LinkError: who has not done its part. Closes the link's connections, so that the others learn of it.
  struct Unfinished {
    std::set<int> closed, silent;  // places
    bool is_relayed = false;       // who is silent may only wait for somebody else
  };
  Unfinished give_up();

 private:
  struct Message {
    std::unique_ptr<WireMessage> transfer;
    int place = 0;
    bool is_receive = false, is_second = false;  // of an all_reduce's second stage
    bool is_done = false;
  };
  using Waiting = std::vector<std::size_t>;  // indices into messages_

  std::size_t send(int place, const at::Tensor& row, int tag);
  std::size_t receive(int place, const at::Tensor& row, int tag);
  void wait_for(const Waiting& waiting, Interrupter& interrupter, const Interrupter::Limits& limits);

  bool is_split() const;
  bool is_tree() const;
  at::Tensor piece(const at::Tensor& row, int place) const;
  at::Tensor segment(const at::Tensor& piece, std::int64_t index) const;
  std::int64_t num_segments(const at::Tensor& piece) const;
  at::Tensor scratch_row(std::int64_t slot, std::int64_t bytes) const;

  void begin_whole();   // all_reduce of little
  void begin_pieces();  // reduce_scatter, all_reduce of much
  void begin_gather();
  void begin_broadcast();
  void begin_tree();
  void run_tree(Interrupter& interrupter, const Interrupter::Limits& limits);
  void send_down();
  at::Tensor tree_rows(int begin, int end) const;
  void receive_segment(std::int64_t index);
  void add_whole();
  void add_segment(std::int64_t index);
  // Others in an order that starts behind oneself, so that not all begin with the same one.
  std::vector<int> peers() const;

  const CommOperation operation_;
  Wire& link_;
  Scratch& scratch_;
  const int size_, place_;
  const int tag_, peer_ = -1;
  const ExchangeSizes sizes_;
  at::Tensor memory_;
  std::vector<Message> messages_;
  std::vector<Waiting> segments_;  // receives of each segment, as far as begun
};

}  // namespace optimus
