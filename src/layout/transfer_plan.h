// TransferPlan and RankShare: the transfers that convert one layout into another, for all ranks and for one
// rank. layout/diff.h computes them and defines how they are executed. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <tl/expected.hpp>
#include <vector>

#include "base/error.h"
#include "layout/layout.h"
#include "layout/rank_domains.h"

namespace optimus {

struct DiffOptions {
  RankDomains topology = {};    // if empty, all ranks are equally far apart
  std::vector<Rank> dead = {};  // ranks that have lost all data; the new layout must not contain them
  // Maximum number of bytes above max(bytes before, bytes after) on every rank. No value means that memory is
  // not limited.
  std::optional<Bytes> reserve = {};
  // Boxes larger than this are sent as several chunks of whole rows. A row is never split, and a box is split
  // into at most 4,096 chunks.
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

inline constexpr std::int64_t kMaxTransfers = std::int64_t{1} << 26;

// Plans for thousands of ranks have millions of transfers. Therefore a record takes only 16 bytes, and boxes
// are stored in a table, because they repeat from layer to layer.
struct TransferPlan {
  std::vector<Box> boxes;
  // In the order of the waves, and within a wave in the global order of diff.h.
  std::vector<Transfer> transfers;
  std::vector<LocalCopy> copies;  // in the order of the waves
  std::vector<TransferWave> waves;

  Bytes moved;  // total bytes of all transfers
  // Sum over all ranks of the bytes that a rank needs and does not have. It is computed without the
  // transfers.
  Bytes lower_bound;
  Bytes full_fetch_bytes;  // bytes that would move if every new box were fetched as a whole
  // [distance]: bytes of the transfers over this distance (layout/rank_domains.h)
  std::vector<Bytes> moved_at;
  Bytes max_sent, max_received;  // most bytes that a rank sends, and that a rank receives
  Bytes reserve;                 // maximum over all ranks of the bytes above max(bytes before, bytes after)
};

// The reason why no plan was found.
struct DiffFailure : Failure {
  std::vector<TensorBox> lost;  // needed boxes that no live rank holds
  Bytes reserve;                // a reserve that would be sufficient; 0 if the failure has another cause
};
template <typename T>
using DiffOutcome = tl::expected<T, DiffFailure>;

// The tensors of each wave, in the order of the waves. The byte counts have the same meaning as in
// TransferPlan.
struct WaveOrder {
  std::vector<std::vector<int>> waves;
  Bytes reserve, lower_bound, full_fetch_bytes;
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

}  // namespace optimus
