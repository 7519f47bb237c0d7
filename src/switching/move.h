// Moves one rank's part of a training's state from the layout of one plan to that of another (reshard/plan_change.h), block after
// block: a block's new buffers are taken, filled from the rank's own old ones and by others, and the old ones let go, so that two
// copies of everything are never held. As many blocks are on their way at once as there is room for. Every rank of the run calls, also those that are only in one of the plans or in none.
//
//   Parameters next(change.to, model, rank, device, Keeping::nothing);
//   StateMover mover(change, rank, {&old, &next}, comm, {});   // nothing is touched yet
//   mover.run();                                               // between two steps; comm is connected for the new plan
//   next.complete();
//
// Large boxes travel alone, straight from where they lie to where they will lie, small ones together. A block that stays as it is
// keeps its memory. What fails leaves neither layout whole, unless the old one is kept meanwhile.
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
  Seconds patience{600};    // for any one message
  bool is_checked = false;  // checksums of all that arrives
  bool keeps_old = false;   // the old layout stays whole until the caller lets it go: twice the memory
  Bytes alone{1 << 17};  // larger boxes travel alone: no copies, and their links are busy from the first on
  Bytes under_way{1 << 26};  // copies for messages, at most; less where there is little room
  WhenEarly early = WhenEarly::never;
  Bytes spare{};  // memory beside what either plan needs that may be used before the pause
  Bytes early_message{1 << 18};
};

struct MoveReport {
  Bytes sent, received;  // each element once, whenever it came
  Bytes early, again;    // of what was received: before the pause; gradients, because of that
  std::int64_t num_messages = 0;
};

class StateMover {
 public:
  // All must outlive this.
  StateMover(const PlanChange& change, int rank, MoveEnds ends, Comm& comm, const MoveOptions& options);
  ~StateMover();

  // Of masters and moments, old and new, at any moment, and of copies for messages.
  Bytes most_held() const { return most_held_; }
  // As the option says, from now on; before anything is touched.
  void set_keeps_old(bool keeps_old);

  // How many of the change's first waves can be sent early within so much memory; of a rank that has no part in it all of them. How many
  // bytes less it then receives in the pause.
  std::size_t num_early_waves(Bytes room) const;
  Bytes saved_early(std::size_t num_waves) const { return saved_by_precopy(change_, share_, num_waves); }
  // Before the pause. `ends` stay as they are until run(), but for updates, before which close_early() must be called.
  void begin_early(const PrecopyTerms& terms);
  void close_early();
  // Why it failed, so that there is no run(); empty: it did not.
  std::string end_early();
  // In the pause, while the old plan's gradients are there: what came early is of this update then. Throws PeersLost.
  void repeat_update(const UpdateFacts& update, std::int64_t num_updates);

  // Once; weights of their own and gradients of the old plan must be gone. Throws PeersLost.
  MoveReport run();

 private:
  // Tensors that move at the same time, and what is begun and ended with them.
  struct Turn {
    std::vector<int> tensors{};             // numbers of the layout
    const RankShare::Wave* wave = nullptr;  // none: nothing of them goes from rank to rank
    std::vector<int> held{}, kept{},
        released{};             // blocks: new ones taken, taken as they lie, old ones let go
    std::size_t waits_for = 0;  // so many turns must have ended before it: there is no room else
  };
  struct Message;
  void plan_turns();
  void plan_memory();
  void begin(std::size_t turn);
  void end_oldest();
  void take_blocks(const Turn& turn);
  void copy_own(const Turn& turn);
  void exchange(const RankShare::Wave& wave);
  void post(const RankShare::Operation& operation);
  void post_box(const RankShare::Operation& operation, const Box& box);
  void post_joint();
  void start(Message message, int peer, bool is_send);
  void end_first();
  const std::string& name_of(int tensor) const { return views_.name_of(tensor); }

  const PlanChange& change_;
  const int rank_;
  const RankShare share_;
  const MoveEnds ends_;
  Comm& comm_;
  MoveOptions options_;
  const StateViews views_;
  const Bytes most_copied_;  // for messages under way, beside one that is larger
  std::vector<Turn> turns_;
  std::size_t num_begun_ = 0, num_ended_ = 0;  // turns
  Bytes most_held_;
  std::set<int> early_blocks_;        // new ones that are held since before the pause
  std::unique_ptr<Precopy> precopy_;  // null: nothing is sent early
  std::vector<Message> under_way_;
  std::vector<std::pair<std::pair<int, bool>, std::vector<at::Tensor>>> joint_;  // by peer and direction
  Bytes staged_;
  MoveReport report_;
};

}  // namespace optimus
