// One operation among ranks that are threads. The members submit their tensors. Once all have arrived, the
// members that wait for the result divide the work into parts. A member that is busy elsewhere does not block
// the others.
//
//   all_reduce   stage 0: part i sums piece i of all tensors into member i's tensor
//                stage 1: part i copies the other members' pieces into member i's tensor
//   otherwise    stage 0: part i fills member i's output
//
// All functions are called with the world's lock held, except run_part(). Read next: thread_comm.cpp, which
// creates these objects and waits on them.
#pragma once

#include <array>
#include <condition_variable>
#include <optional>
#include <string>
#include <vector>

#include "comm/operation.h"
#include "comm/stream_mark.h"

namespace optimus {

// The reason for a failure, and the missing ranks that caused it.
struct BreakReason {
  std::string reason;
  std::vector<int> missing;
};

class SharedOperation {
 public:
  explicit SharedOperation(std::vector<int> members);

  // The member at `member_index` submits its operation. If it does not match the operations of the other
  // members, the operation fails for all of them.
  void submit(int member_index, CommOperation operation);
  // Fails the operation for all members; only the reason of the first call is stored.
  void mark_broken(BreakReason break_reason);

  bool has_arrived(int member_index) const {
    return contributions_[static_cast<std::size_t>(member_index)].has_arrived;
  }
  bool is_complete() const { return num_arrived_ == contributions_.size(); }
  bool is_done() const { return stage_ == num_stages_; }
  const std::optional<BreakReason>& break_reason() const { return break_reason_; }
  bool is_in_progress() const { return num_running_ > 0; }
  std::vector<int> missing() const;  // members that have not arrived
  const std::vector<int>& members() const { return members_; }

  // Claims a part that no member has claimed yet, if there is one. The caller then runs run_part() without
  // the lock, and finish_part() with it.
  std::optional<std::size_t> claim_part();
  StreamMark run_part(std::size_t part);
  void finish_part(std::size_t part, StreamMark mark);

  // Called after completion. Makes the caller's stream wait for all work on the caller's tensors.
  void await_work(int member_index) const;
  // Called after completion. Releases the member's tensors, although other members may still use this object.
  void release(int member_index);
  // Returns whether the work has also finished on the device.
  bool is_passed() const;

  std::condition_variable changed;

 private:
  struct Contribution {
    CommOperation operation;
    StreamMark ready_mark;
    bool has_arrived = false;
  };
  void reduce_piece(std::size_t piece);
  void gather_pieces(std::size_t member_index);
  at::Device device_of(std::size_t part) const;

  const std::vector<int> members_;
  std::vector<Contribution> contributions_;
  std::array<std::vector<StreamMark>, 2> marks_;     // [stage][part]: recorded after the part's work
  std::size_t num_arrived_ = 0, first_arrived_ = 0;  // group index of the member that arrived first
  std::size_t stage_ = 0, num_stages_ = 1;
  std::size_t next_part_ = 0, num_running_ = 0, num_ended_ = 0;  // in this stage
  std::optional<BreakReason> break_reason_;
};

}  // namespace optimus
