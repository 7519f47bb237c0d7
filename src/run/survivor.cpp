// Implements survivor.h.
#include "run/survivor.h"

#include <algorithm>
#include <thread>
#include <variant>

#include "base/error.h"
#include "base/time_stamp.h"
#include "elastic/salvage.h"

namespace optimus {
namespace {

constexpr std::chrono::milliseconds kLookForOrder{10};
constexpr Seconds kLeftMoment{5};  // between a claim and the order that follows it, while files are written

// Waits until the host orders this rank to store its part, or how to continue.
std::variant<SalvageOrder, RegroupOrder> wait_for_order(const Survivor& self, Board& board) {
  const SalvageKeys keys{self.generation};
  Deadline deadline = Deadline::after(self.patience, "an order");
  std::optional<Deadline> left;
  bool has_brought = false;
  while (true) {
    if (!has_brought && value_or_throw(board.find(keys.bring()))) {
      self.bring_memory();
      value_or_throw(board.set(keys.brought(self.rank), ""));
      has_brought = true;
      deadline = Deadline::after(kBringPatience, "an order");  // other hosts may have more to contribute
    }
    if (const auto said = value_or_throw(board.find(keys.regroup()))) return parse_regroup_order(*said);
    if (const auto said = value_or_throw(board.find(keys.order()))) return parse_salvage_order(*said);
    if (!left && self.is_left_behind()) left = Deadline::after(kLeftMoment, "an order");
    if (left && left->has_passed()) throw LeftBehind{};
    if (deadline.has_passed()) throw UserError("no order arrived within {}", text(self.patience));
    std::this_thread::sleep_for(kLookForOrder);
  }
}

std::vector<HeldBox> own_part(const Layout& layout, const SalvageOrder& order, int rank) {
  std::vector<bool> is_there(static_cast<std::size_t>(num_ranks(layout)));
  for (const int other : order.ranks) is_there.at(static_cast<std::size_t>(other)) = true;
  return boxes_to_store(layout, is_there).boxes.at(static_cast<std::size_t>(rank));
}

// Stores the rank's part of the step that the order names.
SalvagePart store(const Survivor& self, const SalvageOrder& order, int number) {
  if (self.training.done().step + 1 == order.step) self.training.follow(order.gate);
  SalvagePart part{.why = "", .state = self.training.done(), .metrics = self.training.last_line()};
  if (part.state.step != order.step) {
    part.why = fmt::format("it is at step {}", part.state.step);
    return part;
  }
  if (self.saver == nullptr) {
    part.why = "it was changing plans";
    return part;
  }
  const Outcome<Bytes> written =
      self.saver->write_part(own_part(self.layout, order, self.rank), order.folder, Rank{number});
  if (!written) part.why = written.error().why;
  return part;
}

void store_part(const Survivor& self, Board& board, const SalvageOrder& order) {
  const auto place = std::find(order.ranks.begin(), order.ranks.end(), self.rank);
  if (place == order.ranks.end()) return;
  const SalvagePart part = store(self, order, static_cast<int>(place - order.ranks.begin()));
  value_or_throw(board.set(SalvageKeys{self.generation}.part(self.rank), text(part)));
}

}  // namespace

std::optional<RegroupOrder> survive(const Survivor& self, Board& board, const SurvivorWords& words,
                                    const std::function<void()>& let_go) {
  const SalvageKeys keys{self.generation};
  try {
    Standing standing = self.training.stand();
    standing.rank = self.rank, standing.missing = words.missing;
    standing.leaves = words.leaves, standing.why_failed = words.why_failed;
    standing.earlier_epoch = words.earlier_epoch;
    value_or_throw(board.set(keys.standing(self.rank), text(standing)));
    value_or_throw(board.set(keys.somebody(), ""));
    let_go();
    if (self.saver != nullptr) self.saver->end_writing();
    const auto order = wait_for_order(self, board);
    if (const auto* const regroup = std::get_if<RegroupOrder>(&order)) return *regroup;
    store_part(self, board, std::get<SalvageOrder>(order));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}cannot contribute to the emergency checkpoint: {}\n", time_stamp(), error.what());
    if (!board.find(keys.somebody())) throw BoardGone{};
  }
  return std::nullopt;
}

}  // namespace optimus
