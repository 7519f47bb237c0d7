// verify: checks a transfer plan before any data moves.
//
// For every rank, verify() checks that
//   - the rank is alive, and it sends and copies only parts of its old boxes;
//   - it receives only elements that it does not have;
//   - received and copied boxes cover each new box exactly once, except for boxes that stay in place;
//   - the rank never holds more than max(old, new) + reserve in any wave;
//   - no tensor that changes is missing.
// For all ranks together, it checks that execution as described in layout/diff.h, with in-order matching of
// the sends and receives between two ranks, terminates on every rank.
//
// It shares no code with diff except layout.h. It works on the boxes of single ranks, interval by interval.
// The time is proportional to the number of transfers plus ranks * tensors.
#pragma once

#include <span>

#include "base/error.h"
#include "layout/diff.h"
#include "layout/layout.h"

namespace optimus {

// The failure names the rank, tensor and box, or the wave. Throws a UserError if a layout is invalid.
Outcome<void> verify(const Layout& from, const Layout& to, const TransferPlan& plan,
                     const DiffOptions& options = {});
// Checks the shares of all ranks, which each rank may have computed locally. shares[r].rank must be r.
Outcome<void> verify(const Layout& from, const Layout& to, std::span<const RankShare> shares,
                     const DiffOptions& options = {});
// Checks everything that concerns a single rank. It does not check whether sends and receives match.
Outcome<void> verify_share(const Layout& from, const RankIndex& from_index, const Layout& to,
                           const RankIndex& to_index, const RankShare& share,
                           const DiffOptions& options = {});

// One send or receive of a rank, with only the fields that are needed for matching. A program is the list of
// a rank's operations.
struct PostedOperation {
  int wave = 0;
  int peer = 0;
  bool is_send = false;
  std::uint64_t data_id = 0;  // equal for a send and a receive of the same data
};
// Simulates the programs (indexed by rank, each in ascending order of waves): a rank posts all operations of
// a wave, waits for them, and continues. The n-th send from a to b matches the n-th receive at b from a.
// Fails if a rank waits forever, or if a send and its matching receive refer to different data.
Outcome<void> check_no_deadlock(std::span<const std::vector<PostedOperation>> programs);

}  // namespace optimus
