// One operation of rank threads: the members submit their tensors, and once all have arrived the work is done
// in parts by whichever members wait. A member that is busy elsewhere does not block the others.
//
//   all_reduce   stage 0: part i sums piece i of all tensors into member i's
//                stage 1: part i copies the other members' pieces into member i's
//   others       stage 0: part i fills member i's output
//
// All functions are called with the world's lock held, except do_part(). Read next: thread_comm.cpp, which
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

// Why the operation fails, and which missing ranks caused that.
struct Breach {
  std::string reason;
  std::vector<int> missing;
};

class Meeting {
 public:
  explicit Meeting(std::vector<int> members);

  // The member at `place` submits its operation. One that does not match those of the others fails the
  // operation for all.
  void come(int place, CommOperation operation);
  // Fails the operation for all members; the first call counts.
  void break_off(Breach breach);

  bool has_come(int place) const { return sides_[static_cast<std::size_t>(place)].has_come; }
  bool is_complete() const { return num_come_ == sides_.size(); }
  bool is_done() const { return stage_ == num_stages_; }
  const std::optional<Breach>& broken() const { return broken_; }
  bool is_being_worked_on() const { return num_running_ > 0; }
  std::vector<int> missing() const;  // members that have not arrived
  const std::vector<int>& members() const { return members_; }

  // Claims a part that no member has taken yet, if there is one. The caller then runs do_part() without the
  // lock, and end_part() with it.
  std::optional<std::size_t> take_part();
  StreamMark do_part(std::size_t part);
  void end_part(std::size_t part, StreamMark mark);

  // After completion: the caller's stream waits for all work on the caller's tensors.
  void await_work(int place) const;
  // After completion: releases the member's tensors, though others may still use this object.
  void release(int place);
  // Whether the work has also finished on the device.
  bool is_passed() const;

  std::condition_variable changed;

 private:
  struct Side {
    CommOperation operation;
    StreamMark is_ready;
    bool has_come = false;
  };
  void reduce_piece(std::size_t piece);
  void gather_pieces(std::size_t into);
  at::Device device_of(std::size_t part) const;

  const std::vector<int> members_;
  std::vector<Side> sides_;
  std::array<std::vector<StreamMark>, 2> marks_;  // [stage][part]: recorded after the part
  std::size_t num_come_ = 0, first_ = 0;          // group index of the member that arrived first
  std::size_t stage_ = 0, num_stages_ = 1;
  std::size_t next_part_ = 0, num_running_ = 0, num_ended_ = 0;  // of this stage
  std::optional<Breach> broken_;
};

}  // namespace optimus
