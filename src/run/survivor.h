// A rank's side of an emergency checkpoint (emergency_checkpoint.h). When other ranks are lost, the rank
// publishes its survivor state, waits for an order, and stores its part. This never makes a failure worse,
// because errors during these steps are only written to the rank's log, and the run fails with the original
// error.
#pragma once

#include <functional>

#include "elastic/membership_change.h"
#include "run/saver.h"
#include "run/training.h"
#include "rundir/board.h"

namespace optimus {

struct Survivor {
  int generation = 0, rank = 0;
  const Layout& layout;  // layout of masters and moments
  Training& training;
  Saver* saver = nullptr;  // null if the plan does not use the rank
  Seconds timeout{60};     // how long to wait for an order
  // Copies the checkpoints in this host's memory to the shared run folder.
  std::function<void()> export_memory = [] {};
  // Returns whether other ranks have continued without this rank. May briefly return true even if this rank
  // is about to receive an order.
  std::function<bool()> is_excluded_from_run = [] { return false; };
};

// The information that a rank publishes in addition to its training state.
struct SurvivorReport {
  std::vector<int> missing{};  // ranks that did not respond
  bool leaves = false;
  std::string failure_reason{};
  std::int64_t earlier_epoch = -1;  // as in SurvivorState
};

// How the run continues for a survivor.
struct SurvivorOutcome {
  std::optional<MembershipChange> order{};  // empty if the run ends or is_board_lost is true
  // Whether the process that hosts the run's board was lost too and cannot be reached.
  bool is_board_lost = false;
};

// Publishes the survivor state and waits for the order. `release` closes this rank's connections, so that all
// ranks that wait for this rank fail too. It is called after the state is published, so that they can read
// the state. Returns the order. If the run ends, stores the rank's part of the state if possible and returns
// no order. Throws ExcludedFromRun.
SurvivorOutcome take_orders_as_survivor(const Survivor& self, Board& board, const SurvivorReport& report,
                                        const std::function<void()>& release);

}  // namespace optimus
