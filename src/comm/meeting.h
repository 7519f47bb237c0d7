// One operation of rank threads: members bring their tensors, and when all have come the work is done in parts, by whichever
// members wait. A member that does something else meanwhile holds nobody up.
//
//   all_reduce   stage 0: part i sums piece i of all tensors into member i's         stage 1: part i copies the others' pieces into i's
//   others       stage 0: part i fills member i's output
//
// All functions are called with the world's lock held, except do_part. Read next: thread_comm.cpp, which opens meetings and waits.
#pragma once

#include <array>
#include <condition_variable>
#include <optional>
#include <string>
#include <vector>

#include "comm/operation.h"
#include "comm/stream_mark.h"

namespace optimus {

// Why nothing comes of a meeting, and whose absence that is.
struct Breach {
  std::string reason;
  std::vector<int> missing;
};

class Meeting {
 public:
  explicit Meeting(std::vector<int> members);

  // The member at `place` brings its side. One that does not fit what others brought breaks the meeting.
  void come(int place, CommOperation operation);
  // Ends it for everybody; the first one counts.
  void break_off(Breach breach);

  bool has_come(int place) const { return sides_[static_cast<std::size_t>(place)].has_come; }
  bool is_complete() const { return num_come_ == sides_.size(); }  // all have come
  bool is_done() const { return stage_ == num_stages_; }
  const std::optional<Breach>& broken() const { return broken_; }
  bool is_being_worked_on() const { return num_running_ > 0; }
  std::vector<int> missing() const;  // members that have not come
  const std::vector<int>& members() const { return members_; }

  // A part that nobody has taken yet, where there is one. Whoever takes it does it without the lock and then ends it.
  std::optional<std::size_t> take_part();
  StreamMark do_part(std::size_t part);
  void end_part(std::size_t part, StreamMark mark);

  // Of a meeting that is done: the caller's stream waits for all that was done to and with its tensors.
  void await_work(int place) const;
  // Of a meeting that is done: the member's tensors are held no longer, though others may still look at the meeting.
  void release(int place);
  // Whether the device has finished, too.
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
  std::array<std::vector<StreamMark>, 2> marks_;  // [stage][part]: behind the part
  std::size_t num_come_ = 0, first_ = 0;          // the place of who came first
  std::size_t stage_ = 0, num_stages_ = 1;
  std::size_t next_part_ = 0, num_running_ = 0, num_ended_ = 0;  // of this stage
  std::optional<Breach> broken_;
};

}  // namespace optimus
