// verify: is this plan right? Asked before a byte moves.
//
// Checked, for every rank: what it sends lies in one of its old boxes and it is alive; what it copies lies in
// one of its old boxes; what arrives it did not have; arrivals and copies together cover its new boxes,
// except the kept ones, exactly once; at no wave does it hold more than max(old, new) + reserve; no tensor
// that changes is left out. And for all together: executed as layout/diff.h says, with the sends and receives
// between two ranks meeting in order, every rank comes to its end.
//
// It shares no code with diff beyond layout.h: it works on the boxes of single ranks, interval by interval.
// Time is in proportion to transfers and ranks * tensors.
#pragma once

#include <span>

#include "base/error.h"
#include "layout/diff.h"
#include "layout/layout.h"

namespace optimus {

// The failure says which rank, tensor and box, or which wave. Throws UserError when a layout is not valid.
Outcome<void> verify(const Layout& from, const Layout& to, const TransferPlan& plan,
                     const DiffOptions& options = {});
// The same for the shares of all ranks, as each may have worked its own out alone. shares[r].rank is r.
Outcome<void> verify(const Layout& from, const Layout& to, std::span<const RankShare> shares,
                     const DiffOptions& options = {});
// Only what one rank can check alone: everything but the meeting of sends and receives.
Outcome<void> verify_share(const Layout& from, const RankIndex& from_index, const Layout& to,
                           const RankIndex& to_index, const RankShare& share,
                           const DiffOptions& options = {});

// One rank's sends and receives of one wave after the other, as abstract as possible.
struct PostedOperation {
  int wave = 0;
  int peer = 0;
  bool is_send = false;
  std::uint64_t what = 0;  // equal on both sides when both mean the same data
};
// Executes the programs ([rank], ascending by wave): a rank posts all operations of a wave, waits for them,
// goes on. The n-th send from a to b meets the n-th receive at b from a. Fails when somebody waits for ever,
// or two that do not mean the same data meet.
Outcome<void> check_no_deadlock(std::span<const std::vector<PostedOperation>> programs);

}  // namespace optimus
