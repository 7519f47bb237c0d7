// Membership changes of a rank: when others are lost, join or leave, it meets the remaining ranks, receives
// the order and moves its state. See rank_run.h.
#include <algorithm>

#include "base/error.h"
#include "elastic/host_memory.h"
#include "elastic/regrouping.h"
#include "observe/decisions.h"
#include "plan/describe.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "run/rank_run.h"
#include "rundir/plan_files.h"

namespace optimus {
namespace {

constexpr Seconds kRegroupPatience{20};  // for the others to reconnect

}  // namespace

std::optional<RegroupOrder> RankRun::meet(Training& training, const SurvivorWords& words,
                                          const std::function<void()>& let_go) {
  // hosts that may be lost one after the other, each while the ranks turn to the next
  constexpr int kMostHosts = 8;
  failed_ = std::chrono::steady_clock::now();
  for (int i = 0; i < kMostHosts; ++i) {
    const std::unique_ptr<Board> board = rank_.open_board ? rank_.open_board() : nullptr;
    if (board == nullptr && rank_.elastic != nullptr) throw LeftBehind{};
    if (board == nullptr) return std::nullopt;
    try {
      return meet_at(*board, training, words, let_go);
    } catch (const BoardGone&) {
      if (rank_.elastic == nullptr) return std::nullopt;
    }
  }
  throw LeftBehind{};
}

std::optional<RegroupOrder> RankRun::meet_at(Board& board, Training& training, SurvivorWords words,
                                             const std::function<void()>& let_go) {
  words.earlier_epoch = earlier_.parameters != nullptr ? training.epoch() - 1 : -1;
  const Layout layout = layout_with_buddies(part_.plan, settings_.model, StateKind::optimizer);
  Survivor self{generation_, number(), layout, training, training.saver()};
  self.bring_memory = [&] {
    try {
      bring_host_memory(settings_.run);
    } catch (const UserError& error) {  // then this host has none to contribute
      rank_.events.report(Warning{error.what()});
    }
  };
  if (rank_.elastic == nullptr) return survive(self, board, words, let_go);
  self.is_left_behind = [&] { return is_left_out(settings_.run, generation_ + 1, rank_.elastic->seat); };
  std::optional<RegroupOrder> order = survive(self, board, words, let_go);
  const auto has_seat = [&](const std::vector<int>& seats) {
    return std::find(seats.begin(), seats.end(), rank_.elastic->seat) != seats.end();
  };
  if (order ? !has_seat(order->membership.seats) : self.is_left_behind()) throw LeftBehind{};
  return order;
}

// Rank 0 writes this file after a plan change. If it is lost before that, the others could not determine how
// their state is laid out.
void RankRun::write_plan_if_missing(std::int64_t epoch) {
  std::error_code error;
  if (rank_.elastic == nullptr || std::filesystem::exists(plan_path(settings_.run, epoch), error)) return;
  (void)write_atomically(files_, plan_path(settings_.run, epoch), plan_text(part_.plan));
}

std::optional<RegroupOrder> RankRun::go_on(const RegroupOrder& order, Training& training) {
  const auto let_go = [&] { rank_.comm.drop(0); };
  SurvivorWords words;
  try {
    take_up(order, training);
    return std::nullopt;
  } catch (const PeersLost& error) {
    words.missing = error.failure.missing, words.leaves = is_leaving(order);
    std::optional<RegroupOrder> next = meet(training, words, let_go);
    if (!next) throw;
    return next;
  } catch (const std::exception& error) {
    words.why_failed = error.what();
    (void)meet(training, words, let_go);
    throw;
  }
}

// The state that this rank owns has the layout of `order.from` and is moved to that of `order.to`. The old
// state is kept until all ranks have received theirs.
SwitchReport RankRun::move_state(const RegroupOrder& order, Training& training) {
  if (training.epoch() != order.epoch && earlier_.parameters != nullptr) part_ = std::move(earlier_);
  earlier_ = {};
  if (!has_device(order.from, number())) part_ = {};
  part_.plan = order.from;
  SwitchFacts facts{settings_.model, rank_.comm, engine_options(), {.patience = kRegroupPatience}};
  facts.move.keeps_old = true;
  PlanSwitch change(facts, part_, order.to,
                    {.num_ranks = static_cast<int>(order.membership.seats.size()),
                     .num_staying = order.num_staying,
                     .copies = MasterCopies::owned,
                     .is_placed = true,
                     .is_phase = true});  // the remaining ranks may be between two phases
  try {
    return change.run(part_);
  } catch (const PeersLost&) {
    const bool has_moved = part_.plan == order.to;
    earlier_ = std::move(change.earlier());
    training.go_on_from(order.state, has_moved ? order.epoch + 1 : order.epoch);
    throw;
  }
}

// A rank that leaves on request does not count as a loss.
void RankRun::note_membership_change(const RegroupOrder& order) {
  const double now = seconds_now();
  membership_.add_time(now, rank_.comm.size());
  if (order.kind == "recover") membership_.losses.add(now);
  if (order.kind == "join") membership_.arrivals.add(now);
}

void RankRun::take_up(const RegroupOrder& order, Training& training) {
  const bool is_behind = order.source == RegroupOrder::Source::live && part_.engine != nullptr &&
                         training.done().step + 1 == order.state.step;
  if (is_behind) training.follow(order.gate);
  training.drop_part_keepers();
  const Plan before = part_.plan;
  num_steps_lost_ += order.num_steps_lost;  // also by earlier orders that further losses interrupted
  note_membership_change(order);
  rank_.elastic->regrouped(order);
  is_taker_gone_ |= rank_of(order.membership, seat_of(0)) < 0;
  rank_.comm.regroup(order.membership);
  generation_ = order.membership.generation, seats_ = order.membership.seats;
  SwitchReport report;
  if (order.source == RegroupOrder::Source::live) {
    report = move_state(order, training);
  } else {
    part_ = {.plan = order.to}, earlier_ = {};
    if (const auto memory = find_host_memory(settings_.run); memory && !is_leaving(order))
      remove_steps(*memory);
    rank_.comm.shrink(order.num_staying);
    const Group world{Role::world, {}};
    if (!is_leaving(order))
      done_or_throw(rank_.comm.connect(0, {&world, 1}, Deadline::after(kRegroupPatience, "the others")));
    if (number() == 0) remove_brought(settings_.run);
    if (!is_leaving(order))
      take_part(order.to,
                order.source == RegroupOrder::Source::checkpoint ? std::optional(order.checkpoint)
                                                                 : run_.resumed.checkpoint,
                order.state, order.epoch + 1, training);
  }
  training.go_on_from(order.state, order.epoch + 1);
  has_left_ = is_leaving(order);
  if (!has_left_) open_records_after(order, training);
  if (has_left_) records_.reset();
  const std::string line = line_of(order, before, report, training);
  num_steps_lost_ = 0;
  answer_drains(order, line);
  if (records_) tell(order, before, report, training, line);
}

// A request is answered by the rank that took it, even if that rank is the one that leaves.
void RankRun::answer_drains(const RegroupOrder& order, const std::string& line) {
  constexpr const char* kRenumbered =
      "the ranks were renumbered after the request; see optimus status for the new numbers";
  if (draining_) {
    const int rank = rank_of(order.membership, draining_->seat);
    const bool is_done = rank < 0 || rank >= order.num_staying;
    requests_.answer(draining_->request, {is_done, is_done ? line : kRenumbered});
    draining_.reset();
  }
  if (number() == 0 && !has_left_) requests_.refuse_drains(kRenumbered, is_taker_gone_);
  is_taker_gone_ = false;
}

// The new rank 0 keeps the records. The previous rank 0 may have been lost between a step and its metrics
// line. It may also have been only stopped, and must not replace the new records with old ones when it
// resumes: before it completes its files, it checks for the claim of the next generation. That generation's
// rank 0, which starts after the claim, removes temporary files that were not yet renamed.
void RankRun::open_records_after(const RegroupOrder& order, const Training& training) {
  records_.reset();
  if (number() != 0) return;
  rank_.elastic->speak_to_people();
  const Path metrics = settings_.run / "metrics.jsonl";
  for (const Path& path : {metrics, settings_.run / "decisions.jsonl"}) remove_temporaries(files_, path);
  const auto check = [&] {
    if (has_claim(settings_.run, generation_ + 1)) throw LeftBehind{};
  };
  const std::string last = training.last_line();
  try {
    if (order.source == RegroupOrder::Source::live && !last.empty())
      (void)complete_metrics(files_, metrics, order.state.step, last, check);
    records_ = open_records(settings_.run, files_, order.state.step, check);
  } catch (const UserError&) {
    check();
    throw;
  }
  keep_plan(files_, settings_.run, part_.plan, training.epoch());
}

std::string RankRun::line_of(const RegroupOrder& order, const Plan& before, const SwitchReport& report,
                             const Training& training) const {
  const Seconds paused = since_failure();
  const double step = training.step_seconds().value;
  const std::int64_t lost = num_steps_lost_;
  const std::string in_steps = step > 0 ? fmt::format(" ({:.1f} steps)", paused.value / step) : "";
  const std::string losses =
      lost == 0 ? "no steps lost" : fmt::format("{} step{} lost", lost, lost == 1 ? "" : "s");
  return fmt::format("step {}: {}; continuing with {} worker{} on {} (was {}); paused {}{}, moved {}, {}",
                     order.state.step, order.what, order.num_staying, order.num_staying == 1 ? "" : "s",
                     short_text(order.to), short_text(before), text(paused), in_steps, text(report.moved),
                     losses);
}

void RankRun::tell(const RegroupOrder& order, const Plan& before, const SwitchReport& report,
                   const Training& training, const std::string& line) {
  rank_.line.print(line);
  const Outcome<void> kept = records_->decisions.append_line(decision_line({.step = order.state.step,
                                                                            .kind = order.kind,
                                                                            .evidence = order.what,
                                                                            .from = plan_hash(before),
                                                                            .to = plan_hash(part_.plan),
                                                                            .epoch = training.epoch(),
                                                                            .pause = since_failure(),
                                                                            .moved = report.moved,
                                                                            .minimum = report.minimum}));
  if (!kept) rank_.events.report(Warning{kept.error().why});
}

}  // namespace optimus
