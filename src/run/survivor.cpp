// See survivor.h.
#include "run/survivor.h"

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "base/time_stamp.h"
#include "run/salvage.h"

namespace optimus {
namespace {

constexpr std::chrono::milliseconds kLookForOrder{20};

SalvageOrder wait_for_order(Board& board, Seconds patience) {
  const Deadline deadline = Deadline::after(patience, "what to save");
  while (true) {
    const std::optional<std::string> said = value_or_throw(board.find(kSalvageOrder));
    if (said) return parse_salvage_order(*said);
    if (deadline.has_passed()) throw UserError("nobody said what to save within {}", text(patience));
    std::this_thread::sleep_for(kLookForOrder);
  }
}

std::vector<HeldBox> own_part(const Layout& layout, const SalvageOrder& order, int rank) {
  std::vector<bool> is_there(static_cast<std::size_t>(num_ranks(layout)));
  for (const int other : order.ranks) is_there.at(static_cast<std::size_t>(other)) = true;
  return boxes_to_store(layout, is_there).boxes.at(static_cast<std::size_t>(rank));
}

// The rank's part of the step that was ordered.
SalvagePart store(const Survivor& self, const SalvageOrder& order, int number) {
  if (self.training.done().step + 1 == order.step) self.training.follow(order.gate);
  SalvagePart part{.why = "", .state = self.training.done(), .metrics = self.training.last_line()};
  if (part.state.step != order.step) {
    part.why = fmt::format("it stands at step {}", part.state.step);
    return part;
  }
  const Outcome<Bytes> written =
      self.saver->write_part(own_part(self.layout, order, self.rank), order.folder, Rank{number});
  if (!written) part.why = written.error().why;
  return part;
}

void take_part(const Survivor& self, Board& board) {
  const SalvageOrder order = wait_for_order(board, self.patience);
  const auto place = std::find(order.ranks.begin(), order.ranks.end(), self.rank);
  if (place == order.ranks.end()) return;
  const SalvagePart part = store(self, order, static_cast<int>(place - order.ranks.begin()));
  value_or_throw(board.set(part_key(self.rank), text(part)));
}

}  // namespace

void survive(const Survivor& self, Board& board, const std::vector<int>& missing,
             const std::function<void()>& let_go) {
  try {
    Standing standing = self.training.stand();
    standing.rank = self.rank, standing.missing = missing;
    value_or_throw(board.set(standing_key(self.rank), text(standing)));
    value_or_throw(board.set(kSomebodyStands, ""));
    let_go();
    if (self.saver != nullptr) self.saver->end_writing();
    take_part(self, board);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}no part in saving what is left: {}\n", time_stamp(), error.what());
  }
}

}  // namespace optimus
