// A rank's side of an emergency checkpoint (emergency_checkpoint.h): when other ranks are lost it publishes
// its survivor state, waits for an order, and stores its part. It never makes a failure worse: its own errors
// go to the rank's log, and the run fails with the original error.
#pragma once

#include <functional>

#include "elastic/membership_change.h"
#include "run/saver.h"
#include "run/training.h"
#include "rundir/board.h"

namespace optimus {

struct Survivor {
  int generation = 0, rank = 0;
  const Layout& layout;  // of masters and moments
  Training& training;
  Saver* saver = nullptr;  // null: the rank has no part in the plan
  Seconds timeout{60};     // timeout for an order; writing has none, the host has one
  // Copies what this host has stored in memory to the shared folder.
  std::function<void()> export_memory = [] {};
  // Whether others have continued without this rank. A rank that is about to receive an order sees true for a
  // moment before it.
  std::function<bool()> is_excluded_from_run = [] { return false; };
};

// What a rank publishes besides its training state.
struct SurvivorReport {
  std::vector<int> missing{};  // ranks that did not answer
  bool leaves = false;
  std::string failure_reason{};
  std::int64_t earlier_epoch = -1;  // as in SurvivorState
};

// How the run continues for a survivor.
struct SurvivorOutcome {
  std::optional<MembershipChange> order{};  // empty: the run ends, or is_board_lost
  bool is_board_lost = false;               // the host that decides cannot be reached: it was lost too
};

// Publishes the survivor state and waits for the order. `release` closes this rank's connections, so that all
// ranks that wait for it fail too; it is called after the state is published, so that they find that state.
// If the run ends, stores the rank's part as far as possible. Throws ExcludedFromRun.
SurvivorOutcome take_orders_as_survivor(const Survivor& self, Board& board, const SurvivorReport& report,
                                        const std::function<void()>& release);

}  // namespace optimus
