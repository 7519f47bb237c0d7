// Implements the membership changes of RankRun. When other ranks are lost, join or leave, a rank publishes
// its survivor state, receives the order and moves its state. See rank_run.h.
#include <algorithm>

#include "base/error.h"
#include "elastic/host_memory.h"
#include "elastic/membership_coordinator.h"
#include "observe/decisions.h"
#include "plan/describe.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "run/rank_run.h"
#include "rundir/plan_files.h"

namespace optimus {
namespace {

constexpr Seconds kReconnectTimeout{20};  // for other ranks to reconnect

}  // namespace

std::optional<MembershipChange> RankRun::join_membership_change(Training& training,
                                                                const SurvivorReport& report,
                                                                const std::function<void()>& release) {
  // Number of hosts that may be lost one after the other while the ranks look for the next host.
  constexpr int kMaxHosts = 8;
  failure_time_ = std::chrono::steady_clock::now();
  for (int i = 0; i < kMaxHosts; ++i) {
    const std::unique_ptr<Board> board = rank_.open_board ? rank_.open_board() : nullptr;
    if (board == nullptr && rank_.elastic != nullptr) throw ExcludedFromRun{};
    if (board == nullptr) return std::nullopt;
    const SurvivorOutcome outcome = join_membership_change_at(*board, training, report, release);
    if (!outcome.is_board_lost) return outcome.order;
    if (rank_.elastic == nullptr) return std::nullopt;
  }
  throw ExcludedFromRun{};
}

SurvivorOutcome RankRun::join_membership_change_at(Board& board, Training& training, SurvivorReport report,
                                                   const std::function<void()>& release) {
  report.earlier_epoch = earlier_.parameters != nullptr ? training.epoch() - 1 : -1;
  const Layout layout = layout_with_copies(part_.plan, settings_.model, StateKind::optimizer);
  Survivor self{generation_, rank_index(), layout, training, training.saver()};
  self.export_memory = [&] {
    try {
      export_host_memory(settings_.run);
    } catch (const ReportedError& error) {  // then this host contributes no copy
      rank_.events.report(Warning{error.what()});
    }
  };
  if (rank_.elastic == nullptr) return take_orders_as_survivor(self, board, report, release);
  const int worker_id = rank_.elastic->worker_id();
  self.is_excluded_from_run = [&] { return is_excluded(settings_.run, generation_ + 1, worker_id); };
  SurvivorOutcome outcome = take_orders_as_survivor(self, board, report, release);
  if (outcome.is_board_lost) return outcome;
  const bool is_excluded_from_run =
      outcome.order ? rank_of(outcome.order->membership, worker_id) < 0 : self.is_excluded_from_run();
  if (is_excluded_from_run) throw ExcludedFromRun{};
  return outcome;
}

// Rank 0 writes this file after a plan change. If rank 0 is lost before that, the other ranks could not
// determine the layout of their state without this file.
void RankRun::write_plan_if_missing(std::int64_t epoch) {
  std::error_code error;
  if (rank_.elastic == nullptr || std::filesystem::exists(plan_path(settings_.run, epoch), error)) return;
  (void)write_atomically(files_, plan_path(settings_.run, epoch), plan_text(part_.plan));
}

std::optional<MembershipChange> RankRun::carry_out(const MembershipChange& order, Training& training) {
  const auto release = [&] { rank_.comm.drop(0); };
  SurvivorReport report;
  try {
    apply_order(order, training);
    return std::nullopt;
  } catch (const PeersLost& error) {
    report.missing = error.failure.missing, report.leaves = is_leaving(order);
    std::optional<MembershipChange> next = join_membership_change(training, report, release);
    if (!next) throw;
    return next;
  } catch (const std::exception& error) {
    report.failure_reason = error.what();
    (void)join_membership_change(training, report, release);
    throw;
  }
}

// Moves this rank's state from the layout of `order.from` to that of `order.to`. The old state is retained
// until all ranks have their new state.
SwitchReport RankRun::move_state(const MembershipChange& order, Training& training) {
  if (training.epoch() != order.epoch && earlier_.parameters != nullptr) part_ = std::move(earlier_);
  earlier_ = {};
  if (!has_device(order.from, rank_index())) part_ = {};
  part_.plan = order.from;
  SwitchContext context{settings_.model, rank_.comm, engine_options(), {.timeout = kReconnectTimeout}};
  context.move.retains_old = true;
  PlanSwitch change(context, part_, order.to,
                    {.num_ranks = static_cast<int>(order.membership.worker_ids.size()),
                     .num_staying = order.num_staying,
                     .copies = MasterCopies::owned,
                     .is_placed = true,
                     .is_phase = true});  // the remaining ranks may be between two phases
  try {
    return change.run(part_);
  } catch (const PeersLost&) {
    const bool has_moved = part_.plan == order.to;
    earlier_ = std::move(change.earlier());
    training.resume_from(order.state, has_moved ? order.epoch + 1 : order.epoch);
    throw;
  }
}

// Records the change in the membership history. A rank that leaves on request is not counted as lost.
void RankRun::record_membership_change(const MembershipChange& order) {
  const double now = seconds_now();
  membership_.add_time(now, rank_.comm.size());
  if (order.kind == "recover") membership_.losses.add(now);
  if (order.kind == "join") membership_.arrivals.add(now);
}

void RankRun::apply_order(const MembershipChange& order, Training& training) {
  const bool is_one_step_behind = order.source == MembershipChange::Source::live && part_.engine != nullptr &&
                                  training.completed_state().step + 1 == order.state.step;
  if (is_one_step_behind) training.finish_step(order.gate);
  training.drop_part_services();
  const Plan previous_plan = part_.plan;
  // Includes earlier orders that were interrupted because more ranks were lost.
  num_steps_lost_ += order.num_steps_lost;
  record_membership_change(order);
  rank_.elastic->membership_changed(order);
  is_request_owner_lost_ |= rank_of(order.membership, worker_id_of(0)) < 0;
  rank_.comm.change_membership(order.membership);
  generation_ = order.membership.generation, worker_ids_ = order.membership.worker_ids;
  SwitchReport report;
  if (order.source == MembershipChange::Source::live) {
    report = move_state(order, training);
  } else {
    part_ = {.plan = order.to}, earlier_ = {};
    if (const auto memory = find_host_memory(settings_.run); memory && !is_leaving(order))
      remove_steps(*memory);
    rank_.comm.shrink(order.num_staying);
    const Group world{Role::world, {}};
    if (!is_leaving(order))
      throw_if_failed(
          rank_.comm.connect(0, {&world, 1}, Deadline::after(kReconnectTimeout, "the other ranks")));
    if (rank_index() == 0) remove_exported(settings_.run);
    if (!is_leaving(order))
      build_part(order.to,
                 order.source == MembershipChange::Source::checkpoint ? std::optional(order.checkpoint)
                                                                      : spec_.resumed.checkpoint,
                 order.state, order.epoch + 1, training);
  }
  training.resume_from(order.state, order.epoch + 1);
  has_left_ = is_leaving(order);
  if (!has_left_) open_records_after(order, training);
  if (has_left_) records_.reset();
  const Decision decision = decision_of(order, previous_plan, report, training);
  num_steps_lost_ = 0;
  answer_drains(order, text(decision));
  if (records_) optimus::report(decision, *records_, rank_.line, rank_.events);
}

// The rank that accepted a request answers it, even if that rank itself leaves.
void RankRun::answer_drains(const MembershipChange& order, const std::string& line) {
  constexpr const char* kRenumberedMessage =
      "the ranks were renumbered after the request; see optimus status for the new numbers";
  if (pending_drain_) {
    const int rank = rank_of(order.membership, pending_drain_->worker_id);
    const bool is_done = rank < 0 || rank >= order.num_staying;
    requests_.write_answer(pending_drain_->request, {is_done, is_done ? line : kRenumberedMessage});
    pending_drain_.reset();
  }
  if (rank_index() == 0 && !has_left_) requests_.refuse_drains(kRenumberedMessage, is_request_owner_lost_);
  is_request_owner_lost_ = false;
}

// The new rank 0 writes the records. The previous rank 0 may have been lost between a step and its metrics
// line. If it was only stopped, it must not replace the new records with old ones when it continues. It
// therefore checks for the claim of the next generation before it completes its files. The rank 0 of that
// generation starts after the claim and removes temporary files that were not yet renamed.
void RankRun::open_records_after(const MembershipChange& order, const Training& training) {
  records_.reset();
  if (rank_index() != 0) return;
  rank_.line.switch_to_console();
  const Path metrics = settings_.run / "metrics.jsonl";
  for (const Path& path : {metrics, settings_.run / "decisions.jsonl"}) remove_temporaries(files_, path);
  const auto check = [&] {
    if (has_claim(settings_.run, generation_ + 1)) throw ExcludedFromRun{};
  };
  const std::string last_line = training.last_metrics_line();
  try {
    if (order.source == MembershipChange::Source::live && !last_line.empty())
      (void)complete_metrics(files_, metrics, order.state.step, last_line, check);
    records_ = open_records(settings_.run, files_, order.state.step, check);
  } catch (const ReportedError&) {
    check();
    throw;
  }
  save_plan(files_, settings_.run, part_.plan, training.epoch());
}

Decision RankRun::decision_of(const MembershipChange& order, const Plan& before, const SwitchReport& report,
                              const Training& training) const {
  return {.step = order.state.step,
          .kind = order.kind,
          .evidence = order.description,
          .from = plan_hash(before),
          .to = plan_hash(order.to),
          .from_name = short_text(before),
          .to_name = short_text(order.to),
          .epoch = training.epoch(),
          .step_seconds = training.step_seconds(),
          .pause = since_failure(),
          .moved = report.moved,
          .minimum = report.minimum,
          .num_workers = order.num_staying,
          .steps_lost = num_steps_lost_};
}

}  // namespace optimus
