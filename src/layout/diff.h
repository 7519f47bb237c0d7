// diff: computes the transfers that convert one layout into another: which rank sends which box of which
// tensor to which rank, and in which order, so that afterwards every rank holds the boxes that `to`
// specifies.
//
// Every plan that diff returns has these properties, which verify() checks independently:
//   - Every element that a rank needs and does not have arrives exactly once, and no element is sent to a
//     rank that already has it. The moved bytes therefore equal the lower bound for these two layouts
//     (layout/assign.h lowers the bound itself by choosing the devices).
//   - The sender is one of the nearest live owners, and several owners send in turns (layout/fanout.h).
//   - No rank ever holds more than max(bytes before, bytes after) + reserve.
//
// Example. A 4 x 4 tensor split by rows on ranks 0 and 1 becomes split by columns:
//
//     from       to         transfers                           copies
//     0 0 0 0    0 0 1 1    0 -> 1  rows 0:2, columns 2:4       0: rows 0:2, columns 0:2
//     0 0 0 0    0 0 1 1    1 -> 0  rows 2:4, columns 0:2       1: rows 2:4, columns 2:4
//     1 1 1 1    0 0 1 1
//     1 1 1 1    0 0 1 1
//
// Execution of a plan. A tensor moves in exactly one wave. For each wave in order, a rank
//   1. allocates its new boxes of the wave's tensors, except those that equal one of its old boxes: these
//      stay in place, and nothing is allocated, copied or sent for them;
//   2. executes its `copies` from old boxes into every new box that contains them;
//   3. posts its sends (from old boxes) and its receives (into every new box that contains them), in the
//      order of the list, without waiting in between;
//   4. waits until all of them have completed, then frees its old boxes of the wave's tensors, except those
//      that stay in place.
//
// Step 4 waits only for the rank's own operations, so ranks may be in different waves. There is no deadlock,
// because no rank waits for a rank in a later wave, so the ranks in the earliest wave always make progress.
// The lists of all ranks follow one global order of all transfers. An executor may therefore limit the number
// of operations in flight (and of staged chunks), even to one at a time. The sends and receives between two
// ranks match in order, so messages need no tags.
//
// A tensor that is not in any wave does not change on any rank. All functions are pure and thread-safe. Read
// next: layout/verify.h; layout/change.h for the share of a single rank; layout/slots.h and layout/fanout.h
// for the algorithms.
#pragma once

#include "layout/change.h"
#include "layout/transfer_plan.h"

namespace optimus {

// Fails if a needed box has no live owner, if no order stays within the memory reserve, or if there are more
// than kMaxTransfers transfers. Throws UserError in the same cases as LayoutChange.
DiffOutcome<TransferPlan> diff(const Layout& from, const Layout& to, const DiffOptions& options = {});

// The same computation in separate steps, so that the share of a single rank can be computed. A LayoutChange
// (layout/change.h) contains everything that does not depend on the rank. order_waves() has the same result
// on all ranks and takes O(ranks * kinds of tensors). diff_for() returns exactly the rank's share of diff().
// It takes time proportional to its own operations and to the number of ranks that hold or need the same
// boxes, never to ranks * ranks.
DiffOutcome<WaveOrder> order_waves(const LayoutChange& change);
DiffOutcome<TransferPlan> diff(const LayoutChange& change, const WaveOrder& order);
DiffOutcome<RankShare> diff_for(const LayoutChange& change, const WaveOrder& order, Rank rank);

// Extracts the share of one rank, the same as that of diff_for(), from a whole plan. O(size of the plan).
RankShare share_of(const TransferPlan& plan, Rank rank);

}  // namespace optimus
