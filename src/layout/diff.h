// diff: computes the transfers that convert one layout into another: which rank sends which box of which
// tensor to which rank, and in which order, so that afterwards every rank holds the boxes that `to`
// specifies.
//
// Every plan that diff returns has these properties, which verify() checks independently:
//   - Every element that a rank needs and does not have arrives exactly once, and no element is sent to a
//     rank that already has it. The moved bytes therefore equal the lower bound for these two layouts
//     (layout/assign.h lowers the bound itself by choosing the devices).
//   - The sender is one of the nearest live owners, and owners take turns (layout/fanout.h).
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
// Step 4 synchronizes only the operations of one rank; ranks may be in different waves. No rank waits for a
// rank in a later wave, so the ranks in the earliest wave always make progress: there is no deadlock. The
// lists of all ranks follow one global order of all transfers. The same therefore holds for an executor that
// limits the number of operations in flight (and of staged chunks), even to one at a time. The sends and
// receives between two ranks match in order, so messages need no tags.
//
// A tensor that is in no wave does not change on any rank. All functions are pure and thread-safe. Read next:
// layout/verify.h; layout/change.h for the share of a single rank; layout/slots.h and layout/fanout.h for the
// algorithms.
#pragma once

#include <optional>
#include <tl/expected.hpp>
#include <vector>

#include "base/error.h"
#include "layout/layout.h"
#include "layout/rank_domains.h"

namespace optimus {

struct DiffOptions {
  RankDomains topology = {};    // empty: all ranks are equally far apart
  std::vector<Rank> dead = {};  // ranks that have lost all data; `to` must not contain them
  // maximum above max(old, new) on every rank; absent: memory is not limited
  std::optional<Bytes> reserve = {};
  // Larger boxes are sent as several chunks of whole rows. A row is never split, and a box is split into at
  // most 4,096 chunks.
  Bytes chunk = Bytes(std::int64_t{64} << 20);
};

struct Transfer {
  int tensor = 0;
  int box = 0;  // index into TransferPlan::boxes
  Rank sender, receiver;
  bool operator==(const Transfer&) const = default;
};

struct LocalCopy {
  int tensor = 0;
  int box = 0;
  Rank rank;
  bool operator==(const LocalCopy&) const = default;
};

struct TransferWave {
  std::vector<int> tensors;
  std::size_t transfers_begin = 0, transfers_end = 0;  // indices into TransferPlan::transfers
  std::size_t copies_begin = 0, copies_end = 0;        // indices into TransferPlan::copies
};

// Plans for thousands of ranks have millions of transfers. Records therefore have 16 bytes, and boxes, which
// repeat from layer to layer, are stored in a table.
struct TransferPlan {
  std::vector<Box> boxes;
  std::vector<Transfer> transfers;  // by wave, in the global order that the lists of all ranks follow
  std::vector<LocalCopy> copies;    // by wave
  std::vector<TransferWave> waves;

  Bytes moved;  // total of all transfers
  // sum over ranks of the bytes that they need and did not have; computed without the transfers
  Bytes lower_bound;
  Bytes naive;                   // bytes that would move if every new box were fetched completely
  std::vector<Bytes> moved_at;   // [distance]
  Bytes max_sent, max_received;  // maximum over all ranks
  Bytes reserve;                 // maximum over all ranks of the bytes above max(old, new)
};

// The reason why there is no plan.
struct DiffFailure : Failure {
  std::vector<TensorBox> lost;  // boxes that are needed but that no live rank has
  Bytes reserve;                // a reserve that would be sufficient; 0 if memory is not the reason
};
template <typename T>
using DiffOutcome = tl::expected<T, DiffFailure>;

// The tensors that move together, in order. `reserve` as in TransferPlan.
struct WaveOrder {
  std::vector<std::vector<int>> waves;
  Bytes reserve, lower_bound, naive;
};

// The part of a plan that concerns one rank.
struct RankShare {
  struct Operation {
    bool is_send = false;
    int tensor = 0;
    Rank peer;
    Box box;
    bool operator==(const Operation&) const = default;
  };
  struct Wave {
    std::vector<int> tensors;
    std::vector<TensorBox> copies;
    std::vector<Operation> operations;
    bool operator==(const Wave&) const = default;
  };
  Rank rank;
  std::vector<Wave> waves;
  bool operator==(const RankShare&) const = default;
};

// Fails if a needed box has no live owner, if no order keeps the reserve, or if there are more than
// kMaxTransfers transfers. Throws UserError in the same cases as LayoutChange.
DiffOutcome<TransferPlan> diff(const Layout& from, const Layout& to, const DiffOptions& options = {});
inline constexpr std::int64_t kMaxTransfers = std::int64_t{1} << 26;

// The same computation in steps, for the share of one rank. A LayoutChange (layout/change.h) contains
// everything that does not depend on the rank. order_waves has the same result on all ranks and takes O(ranks
// * kinds of tensors). diff_for returns exactly the rank's part of diff(), in time proportional to its own
// operations and to the number of ranks that hold or need the same boxes, never to ranks * ranks.
struct LayoutChange;
DiffOutcome<WaveOrder> order_waves(const LayoutChange& change);
DiffOutcome<TransferPlan> diff(const LayoutChange& change, const WaveOrder& order);
DiffOutcome<RankShare> diff_for(const LayoutChange& change, const WaveOrder& order, Rank rank);

// Extracts the same share from a whole plan. O(plan).
RankShare share_of(const TransferPlan& plan, Rank rank);

}  // namespace optimus
