// Implements survivor.h.
#include "run/survivor.h"

#include <algorithm>
#include <thread>
#include <variant>

#include "base/error.h"
#include "base/time_stamp.h"
#include "elastic/emergency_checkpoint.h"

namespace optimus {
namespace {

constexpr std::chrono::milliseconds kOrderPollInterval{10};
// Maximum time between a claim and the order that follows it. Files are written in between.
constexpr Seconds kOrderGracePeriod{5};

// Waits for the host's order, which is either to store this rank's part or how to continue.
std::variant<EmergencyCheckpointOrder, MembershipChange> wait_for_order(const Survivor& self, Board& board) {
  const RecoveryKeys keys{self.generation};
  Deadline deadline = Deadline::after(self.timeout, "an order");
  std::optional<Deadline> exclusion_deadline;
  bool has_exported = false;
  while (true) {
    if (!has_exported && value_or_throw(board.find(keys.export_request()))) {
      self.export_memory();
      value_or_throw(board.set(keys.exported(self.rank), ""));
      has_exported = true;
      // Other hosts may still be copying their checkpoints.
      deadline = Deadline::after(kExportTimeout, "an order");
    }
    if (const auto reply = value_or_throw(board.find(keys.change_membership())))
      return parse_membership_change(*reply);
    if (const auto reply = value_or_throw(board.find(keys.order())))
      return parse_emergency_checkpoint_order(*reply);
    if (!exclusion_deadline && self.is_excluded_from_run())
      exclusion_deadline = Deadline::after(kOrderGracePeriod, "an order");
    if (exclusion_deadline && exclusion_deadline->has_passed()) throw ExcludedFromRun{};
    if (deadline.has_passed())
      throw RuntimeFailure("the host of the run sent no recovery order within {}",
                           text(has_exported ? kExportTimeout : self.timeout));
    std::this_thread::sleep_for(kOrderPollInterval);
  }
}

std::vector<TensorBox> own_part(const Layout& layout, const EmergencyCheckpointOrder& order, int rank) {
  std::vector<bool> is_present(static_cast<std::size_t>(num_ranks(layout)));
  for (const int other : order.ranks) is_present.at(static_cast<std::size_t>(other)) = true;
  return boxes_to_save(layout, is_present).boxes.at(static_cast<std::size_t>(rank));
}

// Stores the rank's part of the state of step `order.step`.
EmergencyCheckpointPart store(const Survivor& self, const EmergencyCheckpointOrder& order, int number) {
  if (self.training.completed_state().step + 1 == order.step) self.training.finish_step(order.gate);
  EmergencyCheckpointPart part{
      .why = "", .state = self.training.completed_state(), .metrics = self.training.last_metrics_line()};
  if (part.state.step != order.step) {
    part.why = fmt::format("the rank is at step {}", part.state.step);
    return part;
  }
  if (self.saver == nullptr) {
    part.why = "the rank was changing plans";
    return part;
  }
  const Outcome<Bytes> written =
      self.saver->write_part(own_part(self.layout, order, self.rank), order.folder, Rank{number});
  if (!written) part.why = written.error().why;
  return part;
}

void store_part(const Survivor& self, Board& board, const EmergencyCheckpointOrder& order) {
  const auto match = std::find(order.ranks.begin(), order.ranks.end(), self.rank);
  if (match == order.ranks.end()) return;
  const EmergencyCheckpointPart part = store(self, order, static_cast<int>(match - order.ranks.begin()));
  value_or_throw(board.set(RecoveryKeys{self.generation}.part(self.rank), text(part)));
}

}  // namespace

SurvivorOutcome take_orders_as_survivor(const Survivor& self, Board& board, const SurvivorReport& report,
                                        const std::function<void()>& release) {
  const RecoveryKeys keys{self.generation};
  try {
    SurvivorState survivor_state = self.training.survivor_state();
    survivor_state.rank = self.rank, survivor_state.missing = report.missing;
    survivor_state.is_leaving = report.leaves, survivor_state.failure_reason = report.failure_reason;
    survivor_state.earlier_epoch = report.earlier_epoch;
    value_or_throw(board.set(keys.survivor_state(self.rank), text(survivor_state)));
    value_or_throw(board.set(keys.first_report(), ""));
    release();
    if (self.saver != nullptr) self.saver->end_writing();
    const auto order = wait_for_order(self, board);
    if (const auto* const change = std::get_if<MembershipChange>(&order)) return {.order = *change};
    store_part(self, board, std::get<EmergencyCheckpointOrder>(order));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}cannot contribute to the emergency checkpoint: {}\n", time_stamp(), error.what());
    return {.is_board_lost = !board.find(keys.first_report())};
  }
  return {};
}

}  // namespace optimus
