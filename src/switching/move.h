// Moves one rank's part of the training state from the layout of one plan to that of another
// (reshard/plan_change.h). The move proceeds block by block: a block's new buffers are allocated and filled
// from the rank's own old buffers and from other ranks, and then its old buffers are released. Two copies of
// the whole state therefore never exist. As many blocks move concurrently as memory allows. Every rank of the
// run takes part, even if only one or neither of the plans uses it.
//
//   Parameters next(change.to, model, rank, device, StorageMode::nothing);
//   StateMover mover(change, rank, {&old, &next}, comm, {});   // nothing is changed yet
//   mover.run();       // between two steps; comm is connected for the new plan
//   next.complete();
//
// Large boxes are sent one by one, directly from the old to the new buffer. Small boxes are combined. A block
// whose layout does not change keeps its memory. After a failure, neither layout is complete, unless the old
// one is retained (MoveOptions::retains_old).
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "reshard/plan_change.h"
#include "switching/precopy.h"
#include "switching/state_views.h"

namespace optimus {

struct MoveOptions {
  Seconds timeout{600};     // for each message
  bool is_checked = false;  // verify the checksums of all received data
  // Keep the old layout complete until the caller releases it, which takes twice the memory.
  bool retains_old = false;
  // Boxes larger than this are sent one by one, because they then need no staging copies and sending can
  // start immediately.
  Bytes max_combined{1 << 17};
  Bytes max_in_flight{1 << 26};  // limit of staging copies for messages in flight; lower if memory is short
  PrecopyMode early = PrecopyMode::never;
  Bytes spare{};  // extra memory, beyond what either plan needs, that may be used before the pause
  Bytes precopy_message{1 << 18};
};

struct MoveReport {
  Bytes sent, received;  // each element is counted once, whether it arrived before or during the pause
  // State received before the pause, and gradients that therefore had to be received during the pause.
  Bytes early, gradients_resent;
  std::int64_t num_messages = 0;
};

class StateMover {
 public:
  // All arguments must outlive this object.
  StateMover(const PlanChange& change, int rank, MoveEnds ends, Comm& comm, const MoveOptions& options);
  ~StateMover();

  // Peak memory of the old and new masters and moments and of staging copies.
  Bytes peak_bytes() const { return peak_bytes_; }
  // Overrides MoveOptions::retains_old. Must be called before the move begins.
  void set_retains_old(bool retains_old);

  // num_precopy_waves() returns how many of the change's first waves can be sent early with `available` bytes
  // of memory. For a rank that takes no part in the change, it returns the number of all waves.
  // bytes_saved_by_precopy() returns how many fewer bytes the rank receives during the pause if `num_waves`
  // waves are sent early.
  std::size_t num_precopy_waves(Bytes available) const;
  Bytes bytes_saved_by_precopy(std::size_t num_waves) const {
    return saved_by_precopy(change_, share_, num_waves);
  }
  // Called before the pause. The objects in `ends` must not change until run(), except through optimizer
  // updates. close_precopy() must be called before each such update.
  void begin_precopy(const PrecopyTerms& terms);
  void close_precopy();
  // Returns why pre-copy failed, or an empty string if it succeeded. After a failure, run() must not be
  // called.
  std::string end_precopy();
  // Called during the pause, while the old plan's gradients still exist. Applies this update to the state
  // that was sent early. Throws PeersLost.
  void repeat_update(const UpdateRecord& update, std::int64_t num_updates);

  // Moves the state. Called once. Separate weights and gradients of the old plan must have been released.
  // Throws PeersLost.
  MoveReport run();

 private:
  // Tensors that move at the same time, and the blocks that are allocated and released with them.
  struct Turn {
    std::vector<int> tensors{};             // indices of tensors in the layout
    const RankShare::Wave* wave = nullptr;  // null if no tensor moves between ranks
    // New blocks to allocate, blocks whose memory is reused, and old blocks to release.
    std::vector<int> allocated{}, reused{}, released{};
    // Number of turns that must have ended before this turn starts, so that enough memory is free.
    std::size_t waits_for = 0;
  };
  struct Message;
  void plan_turns();
  void plan_memory();
  void begin(std::size_t turn);
  void finish_oldest_turn();
  void allocate_blocks(const Turn& turn);
  void copy_local(const Turn& turn);
  void exchange(const RankShare::Wave& wave);
  void post(const RankShare::Operation& operation);
  void post_box(const RankShare::Operation& operation, const Box& box);
  void post_combined();
  void start(Message message, int peer, bool is_send);
  void finish_first_message();
  const std::string& name_of(int tensor) const { return views_.name_of(tensor); }

  const PlanChange& change_;
  const int rank_;
  const RankShare share_;
  const MoveEnds ends_;
  Comm& comm_;
  MoveOptions options_;
  const StateViews views_;
  // Limit of staging copies for messages in flight, in addition to one larger message.
  const Bytes max_staged_;
  std::vector<Turn> turns_;
  std::size_t num_begun_ = 0, num_ended_ = 0;  // turns
  Bytes peak_bytes_;
  std::set<int> precopy_blocks_;      // new blocks that were allocated before the pause
  std::unique_ptr<Precopy> precopy_;  // null if no state is sent early
  std::vector<Message> in_flight_;
  // Keyed by peer and by whether it is a send.
  std::vector<std::pair<std::pair<int, bool>, std::vector<at::Tensor>>> combined_;
  Bytes staged_;
  MoveReport report_;
};

}  // namespace optimus
