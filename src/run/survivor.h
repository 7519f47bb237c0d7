// A rank's side of a salvage (salvage.h): when others are lost it says where it stands, waits to be told what to do, and stores its part.
// Never makes a failure worse: what goes wrong here is said in the rank's log, and the run fails as it did.
#pragma once

#include <functional>

#include "elastic/regroup.h"
#include "run/saver.h"
#include "run/training.h"
#include "rundir/board.h"

namespace optimus {

struct Survivor {
  int generation = 0, rank = 0;
  const Layout& layout;  // of masters and moments
  Training& training;
  Saver* saver = nullptr;  // null: the rank has no part in the plan
  Seconds patience{60};    // for an answer; writing has none, the host has
  // Copies what this host has in its memory to where all see it.
  std::function<void()> bring_memory = [] {};
  // Whether others have gone on without this rank; one that is about to be told how to go on sees that a moment before.
  std::function<bool()> is_left_behind = [] { return false; };
};

// What a rank says beside where it stands.
struct SurvivorWords {
  std::vector<int> missing{};  // ranks that did not answer
  bool leaves = false;
  std::string why_failed{};
  std::int64_t earlier_epoch = -1;  // as Standing has it
};

// Thrown when whoever decides cannot be reached any more: it was lost, too.
struct BoardGone {};

// let_go: closes this rank's connections, so that all who wait for it fail too; called when the rank has said where it stands, so that
// whoever misses it because of that finds what it said. Throws LeftBehind. Returns how to go on, where that is what was decided; else the rank's part is
// stored, as far as it can be.
std::optional<RegroupOrder> survive(const Survivor& self, Board& board, const SurvivorWords& words,
                                    const std::function<void()>& let_go);

}  // namespace optimus
