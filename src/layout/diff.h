// diff: from one layout to another. Which rank sends which box of which tensor to which rank, in which order,
// so that afterwards every rank holds what `to` says.
//
// What holds for every plan that diff returns, and verify() checks on its own:
//   - every element that a rank needs and does not have arrives exactly once, and nothing is sent to a rank
//     that has it; so the moved bytes are the lower bound for these two layouts (layout/assign.h lowers the
//     bound itself, by choosing who is who);
//   - the sender is one of the nearest living owners, and owners take turns (layout/fanout.h);
//   - no rank ever holds more than max(what it held, what it will hold) + reserve.
//
// Example. A 4 x 4 tensor by rows on ranks 0 and 1 becomes one by columns:
//
//     from       to         transfers                           copies
//     0 0 0 0    0 0 1 1    0 -> 1  rows 0:2, columns 2:4       0: rows 0:2, columns 0:2
//     0 0 0 0    0 0 1 1    1 -> 0  rows 2:4, columns 0:2       1: rows 2:4, columns 2:4
//     1 1 1 1    0 0 1 1
//     1 1 1 1    0 0 1 1
//
// How a plan is executed. A tensor moves in exactly one wave. For each wave in turn, a rank
//   1. allocates its new boxes of the wave's tensors, except those that are equal to one of its old boxes:
//      these are kept where they are, nothing is allocated, copied or sent for them;
//   2. copies its `copies` out of old boxes into every new box that contains them;
//   3. posts its sends (out of old boxes) and its receives (into every new box that contains them), in the
//      order of the list, without waiting in between;
//   4. waits until all of them are done, then frees its old boxes of the wave's tensors, except the kept
//   ones.
//
// Step 4 is a barrier of the rank with itself; ranks may be in different waves. Nobody waits for a rank in a
// later wave, so whoever is in the earliest wave can go on: no deadlock. The lists of all ranks follow one
// order of all transfers, so the same holds for an executor that keeps only a few operations in flight (and
// stages only a few chunks), down to one at a time. The sends and receives between two ranks meet in order,
// so messages need no tags.
//
// A tensor that is in no wave stays as it is, everywhere. Pure functions of values, from any thread.
// Read next: layout/verify.h; layout/change.h, for one rank of many; layout/slots.h and layout/fanout.h, how.
#pragma once

#include <optional>
#include <tl/expected.hpp>
#include <vector>

#include "base/error.h"
#include "layout/layout.h"
#include "layout/rank_domains.h"

namespace optimus {

struct DiffOptions {
  RankDomains topology = {};          // empty: all ranks are equally far
  std::vector<Rank> dead = {};        // hold nothing any more; `to` must not name them
  std::optional<Bytes> reserve = {};  // over max(old, new), on every rank; absent: memory is no concern
  // Larger boxes are sent as several of whole rows. A row is never cut, and a box never into more than 4,096.
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
  std::size_t transfers_begin = 0, transfers_end = 0;  // of TransferPlan::transfers
  std::size_t copies_begin = 0, copies_end = 0;        // of TransferPlan::copies
};

// Millions of transfers for thousands of ranks: records are 16 bytes, and boxes, which repeat from layer to
// layer, lie in a table.
struct TransferPlan {
  std::vector<Box> boxes;
  std::vector<Transfer> transfers;  // by wave, in the order in which all ranks list them
  std::vector<LocalCopy> copies;    // by wave
  std::vector<TransferWave> waves;

  Bytes moved;        // by all transfers
  Bytes lower_bound;  // the sum over ranks of what they will hold and did not: counted without the transfers
  Bytes naive;        // what fetching every new box whole would move
  std::vector<Bytes> moved_at;   // [distance]
  Bytes max_sent, max_received;  // by any one rank
  Bytes reserve;                 // the most that any rank holds above max(old, new)
};

// Why there is no plan.
struct DiffFailure : Failure {
  std::vector<HeldBox> lost;  // needed, and held by no living rank
  Bytes reserve;              // with this one it would work; 0 when memory is not the reason
};
template <typename T>
using DiffOutcome = tl::expected<T, DiffFailure>;

// Which tensors move together, and when. `reserve` as in TransferPlan.
struct WaveOrder {
  std::vector<std::vector<int>> waves;
  Bytes reserve, lower_bound, naive;
};

// One rank's part of a plan.
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
    std::vector<HeldBox> copies;
    std::vector<Operation> operations;
    bool operator==(const Wave&) const = default;
  };
  Rank rank;
  std::vector<Wave> waves;
  bool operator==(const RankShare&) const = default;
};

// Fails when a needed box has no living owner, when no order keeps the reserve, and when there are more than
// kMaxTransfers. Throws UserError as LayoutChange does.
DiffOutcome<TransferPlan> diff(const Layout& from, const Layout& to, const DiffOptions& options = {});
inline constexpr std::int64_t kMaxTransfers = std::int64_t{1} << 26;

// The same in steps, for one rank of many. A LayoutChange (layout/change.h) holds what does not depend on who
// asks. order_waves is the same for all ranks, O(ranks * kinds of tensors). diff_for gives exactly the rank's
// part of diff(), in time proportional to its own operations and to the ranks that hold or need the same
// boxes, never to ranks * ranks.
struct LayoutChange;
DiffOutcome<WaveOrder> order_waves(const LayoutChange& change);
DiffOutcome<TransferPlan> diff(const LayoutChange& change, const WaveOrder& order);
DiffOutcome<RankShare> diff_for(const LayoutChange& change, const WaveOrder& order, Rank rank);

// The same part, cut out of a whole plan. O(plan).
RankShare share_of(const TransferPlan& plan, Rank rank);

}  // namespace optimus
