// Implements verify for a whole plan: checks its records, then each rank alone (verify_share.cpp), then all
// ranks together (deadlock.cpp).
#include "layout/verify.h"

#include <algorithm>
#include <functional>

namespace optimus {
namespace {

// Checks the indices in the records of a plan before they are used.
Outcome<void> check_records(const TransferPlan& plan, int num_ranks) {
  const auto is_rank = [&](Rank rank) { return rank.value >= 0 && rank.value < num_ranks; };
  const auto is_box = [&](int box) { return box >= 0 && box < static_cast<int>(plan.boxes.size()); };
  std::size_t transfers = 0, copies = 0;
  for (const TransferWave& wave : plan.waves) {
    if (wave.transfers_begin != transfers || wave.transfers_end < transfers || wave.copies_begin != copies ||
        wave.copies_end < copies)
      return failure("the waves of the plan are not consecutive");
    transfers = wave.transfers_end, copies = wave.copies_end;
  }
  if (transfers != plan.transfers.size() || copies != plan.copies.size())
    return failure("the waves of the plan do not include all transfers and copies");
  for (const Transfer& transfer : plan.transfers)
    if (!is_rank(transfer.sender) || !is_rank(transfer.receiver) || !is_box(transfer.box))
      return failure(
          "a transfer from rank {} to rank {} of box {} refers to a rank or box that does not exist",
          transfer.sender.value, transfer.receiver.value, transfer.box);
  for (const LocalCopy& copy : plan.copies)
    if (!is_rank(copy.rank) || !is_box(copy.box))
      return failure("a copy on rank {} of box {} refers to a rank or box that does not exist",
                     copy.rank.value, copy.box);
  return {};
}

// For each rank, the indices of the records that concern it, in the order of the plan.
class RecordsByRank {
 public:
  RecordsByRank(int num_ranks, std::size_t num_records,
                const std::function<void(std::size_t, std::vector<Rank>&)>& ranks_of)
      : begin_of_(static_cast<std::size_t>(num_ranks) + 1) {
    std::vector<Rank> ranks;
    const auto visit = [&](const auto& use) {
      for (std::size_t i = 0; i < num_records; ++i) {
        ranks.clear();
        ranks_of(i, ranks);
        for (const Rank rank : ranks) use(static_cast<std::size_t>(rank.value), i);
      }
    };
    visit([&](std::size_t rank, std::size_t) { ++begin_of_[rank + 1]; });
    for (std::size_t r = 0; r + 1 < begin_of_.size(); ++r) begin_of_[r + 1] += begin_of_[r];
    std::vector<std::size_t> next(begin_of_);
    records_.resize(begin_of_.back());
    visit([&](std::size_t rank, std::size_t i) { records_[next[rank]++] = static_cast<std::uint32_t>(i); });
  }
  std::span<const std::uint32_t> of(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return std::span(records_).subspan(begin_of_[r], begin_of_[r + 1] - begin_of_[r]);
  }

 private:
  std::vector<std::size_t> begin_of_;
  std::vector<std::uint32_t> records_;
};

class PlanShares {
 public:
  PlanShares(const TransferPlan& plan, int num_ranks)
      : plan_(plan),
        transfers_(num_ranks, plan.transfers.size(),
                   [&](std::size_t i, std::vector<Rank>& ranks) {
                     ranks.push_back(plan.transfers[i].sender);
                     if (plan.transfers[i].receiver != ranks[0]) ranks.push_back(plan.transfers[i].receiver);
                   }),
        copies_(num_ranks, plan.copies.size(),
                [&](std::size_t i, std::vector<Rank>& ranks) { ranks.push_back(plan.copies[i].rank); }) {}

  RankShare share(int rank) const {
    RankShare share{Rank{rank}, {}};
    const auto transfers = transfers_.of(rank), copies = copies_.of(rank);
    auto transfer = transfers.begin();
    auto copy = copies.begin();
    for (const TransferWave& wave : plan_.waves) {
      RankShare::Wave& own_wave = share.waves.emplace_back(RankShare::Wave{wave.tensors, {}, {}});
      for (; copy != copies.end() && *copy < wave.copies_end; ++copy)
        own_wave.copies.push_back({plan_.copies[*copy].tensor, box(plan_.copies[*copy].box)});
      const auto end = std::lower_bound(transfer, transfers.end(), wave.transfers_end);
      own_wave.operations.reserve(static_cast<std::size_t>(end - transfer));
      for (; transfer != end; ++transfer) {
        const Transfer& at = plan_.transfers[*transfer];
        const bool is_send = at.sender.value == rank;
        own_wave.operations.push_back({is_send, at.tensor, is_send ? at.receiver : at.sender, box(at.box)});
      }
    }
    return share;
  }

  std::vector<PostedOperation> program(int rank) const {
    std::vector<PostedOperation> program;
    int wave = 0;
    for (const std::uint32_t i : transfers_.of(rank)) {
      while (i >= plan_.waves[static_cast<std::size_t>(wave)].transfers_end) ++wave;
      const bool is_send = plan_.transfers[i].sender.value == rank;
      program.push_back(
          {wave, is_send ? plan_.transfers[i].receiver.value : plan_.transfers[i].sender.value, is_send, i});
    }
    return program;
  }

 private:
  const Box& box(int index) const { return plan_.boxes[static_cast<std::size_t>(index)]; }
  const TransferPlan& plan_;
  RecordsByRank transfers_, copies_;
};

std::vector<PostedOperation> program_of(const RankShare& share) {
  std::vector<PostedOperation> program;
  for (int w = 0; w < static_cast<int>(share.waves.size()); ++w)
    for (const RankShare::Operation& operation : share.waves[static_cast<std::size_t>(w)].operations) {
      std::uint64_t data_id = static_cast<std::uint64_t>(operation.tensor);
      for (int d = 0; d < operation.box.num_dims; ++d)
        for (const std::int64_t edge : {operation.box[d].begin, operation.box[d].end})
          data_id = (data_id ^ static_cast<std::uint64_t>(edge)) * 0x9e3779b97f4a7c15ULL + (data_id >> 32);
      program.push_back({w, operation.peer.value, operation.is_send, data_id});
    }
  return program;
}

int check_and_count_ranks(const Layout& from, const Layout& to) {
  validate_pair(from, to);
  return std::max(num_ranks(from), num_ranks(to));
}

}  // namespace

Outcome<void> verify(const Layout& from, const Layout& to, const TransferPlan& plan,
                     const DiffOptions& options) {
  const int count = check_and_count_ranks(from, to);
  if (auto outcome = check_records(plan, count); !outcome) return outcome;
  const RankIndex from_index(from), to_index(to);
  const PlanShares shares(plan, count);
  std::vector<std::vector<PostedOperation>> programs;
  for (int rank = 0; rank < count; ++rank) {
    auto outcome = verify_share(from, from_index, to, to_index, shares.share(rank), options);
    if (!outcome) return outcome;
    programs.push_back(shares.program(rank));
  }
  return check_no_deadlock(programs);
}

Outcome<void> verify(const Layout& from, const Layout& to, std::span<const RankShare> shares,
                     const DiffOptions& options) {
  const int count = check_and_count_ranks(from, to);
  if (static_cast<int>(shares.size()) != count)
    return failure("shares for {} ranks were given, but the layouts have {} ranks", shares.size(), count);
  const RankIndex from_index(from), to_index(to);
  std::vector<std::vector<PostedOperation>> programs;
  for (int rank = 0; rank < count; ++rank) {
    const RankShare& share = shares[static_cast<std::size_t>(rank)];
    if (share.rank.value != rank) return failure("share {} belongs to rank {}", rank, share.rank.value);
    auto outcome = verify_share(from, from_index, to, to_index, share, options);
    if (!outcome) return outcome;
    programs.push_back(program_of(share));
  }
  return check_no_deadlock(programs);
}

}  // namespace optimus
