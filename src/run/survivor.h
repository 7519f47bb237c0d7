// A rank's side of a salvage (salvage.h): when others are lost it says where it stands, waits to be told what to do, and stores its part.
// Never makes a failure worse: what goes wrong here is said in the rank's log, and the run fails as it did.
#pragma once

#include <functional>

#include "run/board.h"
#include "run/saver.h"
#include "run/training.h"

namespace optimus {

struct Survivor {
  int rank = 0;
  const Layout& layout;  // of masters and moments
  Training& training;
  Saver* saver = nullptr;  // null: the rank has no part in the plan
  Seconds patience{60};    // for an answer; writing has none, the host has
};

// missing: ranks that did not answer. let_go: closes this rank's connections, so that all who wait for it fail too; called when the
// rank has said where it stands, so that whoever misses it because of that finds what it said.
void survive(const Survivor& self, Board& board, const std::vector<int>& missing,
             const std::function<void()>& let_go);

}  // namespace optimus
