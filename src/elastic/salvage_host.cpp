// Implements salvage_host.h.
#include "elastic/salvage_host.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "elastic/pulse.h"
#include "observe/metrics.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "rundir/plan_files.h"

namespace optimus {

SalvageHost::SalvageHost(Board& board, FileSystem& files, SalvageFacts facts)
    : board_(board), files_(files), facts_(std::move(facts)) {
  if (facts_.regrouping != nullptr) keys_.generation = facts_.regrouping->membership().generation;
}

std::vector<bool> SalvageHost::by_rank(const std::vector<bool>& is_gone) const {
  if (facts_.regrouping == nullptr) return is_gone;
  std::vector<bool> result;
  for (const int seat : facts_.regrouping->membership().seats)
    result.push_back(is_gone.at(static_cast<std::size_t>(seat)));
  return result;
}

bool SalvageHost::look(const std::vector<bool>& gone_seats) {
  const std::vector<bool> is_gone = by_rank(gone_seats);
  num_ranks_ = static_cast<int>(is_gone.size());
  switch (stage_) {
    case Stage::nobody: {
      const auto somebody = board_.find(keys_.somebody());
      if (!somebody || !*somebody) return false;
      come_ = Deadline::after(facts_.come, "survivor states");
      slow_ = Deadline::after(facts_.slow, "survivor states of slow ranks");
      cut_ = Deadline::after(facts_.cut, "the larger partition");
      stage_ = Stage::coming;
      [[fallthrough]];
    }
    case Stage::coming:
      take_standings();
      take_beats();
      if (facts_.regrouping != nullptr && has_claim(facts_.run, keys_.generation + 1)) {
        // adopts that decision if it includes these ranks
        if (!go_on()) refuse("other ranks of the run have continued without these");
        break;
      }
      if (!are_all_here(is_gone) || !are_enough()) break;
      if (facts_.regrouping != nullptr && facts_.regrouping->waits_for_lost(all_standings())) break;
      decide();
      break;
    case Stage::writing:
      collect(is_gone);
      break;
    case Stage::over:
      break;
  }
  return stage_ != Stage::over && stage_ != Stage::nobody;
}

void SalvageHost::hurry() {
  constexpr Seconds kMoment{0.2};  // mpirun sends SIGKILL one second after SIGTERM
  if (is_in_haste_ || stage_ != Stage::coming) return;
  is_in_haste_ = true;
  if (come_->remaining() > kMoment) come_ = Deadline::after(kMoment, "survivor states");
}

void SalvageHost::take_standings() {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (standings_.contains(rank)) continue;
    const auto said = board_.find(keys_.standing(rank));
    if (!said || !*said) continue;
    try {
      Standing standing = parse_standing(**said);
      if (standing.rank == rank) standings_.emplace(rank, std::move(standing));
    } catch (const UserError&) {  // treated as no report
    }
    settle_ = Deadline::after(facts_.settle, "missing ranks");
  }
}

// A delayed process is not lost: its heartbeat continues (pulse.h), and it reports later.
void SalvageHost::take_beats() {
  constexpr Seconds kNextBeat{2};
  if (facts_.regrouping == nullptr) return;
  const std::vector<int>& seats = facts_.regrouping->membership().seats;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const auto said = board_.find(pulse_key(seats[static_cast<std::size_t>(rank)]));
    if (!said || !*said) continue;
    const auto found = beats_.find(rank);
    if (found == beats_.end() || found->second.first != **said)
      beats_.insert_or_assign(rank, std::pair(**said, Deadline::after(kNextBeat, "a heartbeat")));
  }
}

bool SalvageHost::is_beating(int rank) const {
  const auto found = beats_.find(rank);
  return found != beats_.end() && !found->second.second.has_passed() && !slow_->has_passed() && !is_in_haste_;
}

// Ranks that ended before they reported will not report. Ranks that others missed may report within a short
// time: they may only have waited for others.
bool SalvageHost::are_all_here(const std::vector<bool>& is_gone) const {
  std::set<int> missed;
  for (const auto& [rank, standing] : standings_)
    missed.insert(standing.missing.begin(), standing.missing.end());
  bool is_anybody_expected = false, are_all_missed = true;
  const bool do_leavers_count =
      facts_.regrouping == nullptr || facts_.regrouping->needs_leavers(all_standings());
  const std::size_t num_expected = do_leavers_count ? is_gone.size() : facts_.regrouping->staying().size();
  for (int rank = 0; rank < static_cast<int>(num_expected); ++rank) {
    if (standings_.contains(rank) || is_gone[static_cast<std::size_t>(rank)]) continue;
    if (is_beating(rank)) return false;
    is_anybody_expected = true;
    are_all_missed = are_all_missed && missed.contains(rank);
  }
  return !is_anybody_expected || come_->has_passed() || (are_all_missed && settle_->has_passed());
}

// Half of the run or less may be the isolated partition: the larger one acts first.
bool SalvageHost::are_enough() const {
  if (facts_.regrouping == nullptr || !facts_.may_be_cut_off || is_in_haste_ || cut_->has_passed())
    return true;
  std::ptrdiff_t num_unknown = 0;
  const std::vector<int> staying = facts_.regrouping->staying();
  for (int rank = 0; rank < static_cast<int>(staying.size()); ++rank) {
    const auto gone = board_.find(gone_key(staying[static_cast<std::size_t>(rank)]));
    num_unknown += !standings_.contains(rank) && !(gone && *gone && **gone == kEnded);
  }
  return std::ssize(standings_) > num_unknown;
}

void SalvageHost::refuse(const std::string& why) {
  why_not_ = why;
  (void)board_.set(keys_.order(), text(SalvageOrder{}));
  stage_ = Stage::over;
}

// Plans change between two steps, and a rank that failed in the middle of a change is torn, so all other
// states are laid out according to one plan.
void SalvageHost::take_layout() {
  for (const auto& [rank, standing] : standings_)
    if (!standing.is_torn) epoch_ = std::max(epoch_, standing.epoch);
  const Plan plan = read_plan(plan_path(facts_.run, epoch_));
  layout_ = layout_with_buddies(plan, facts_.model, StateKind::optimizer);
  num_holders_ = static_cast<std::size_t>(num_devices(plan));
}

std::vector<Standing> SalvageHost::all_standings() const {
  std::vector<Standing> result;
  for (const auto& [rank, standing] : standings_) result.push_back(standing);
  return result;
}

// After success the host waits for the next loss.
bool SalvageHost::go_on() {
  if (facts_.regrouping == nullptr) return false;
  const auto order = facts_.regrouping->regroup(all_standings());
  if (!order) {
    why_it_ends_ = fmt::format("; the remaining ranks cannot continue: {}", order.error());
    return false;
  }
  const std::string key = keys_.regroup();
  keys_.generation = order->membership.generation, stage_ = Stage::nobody;
  standings_.clear(), beats_.clear(), come_.reset(), settle_.reset(), is_in_haste_ = false;
  return board_.set(key, text(*order)).has_value();
}

void SalvageHost::decide() {
  if (go_on()) return;
  try {
    take_layout();
  } catch (const UserError& error) {
    return refuse(error.what());
  }
  std::vector<Standing> all;
  for (const auto& [rank, standing] : standings_)
    if (standing.epoch == epoch_) all.push_back(standing);
  plan_ = plan_salvage(layout_, all);
  if (!plan_.is_whole()) return refuse("lost with the ranks: " + lost_text(layout_, plan_.lost));
  std::optional<CheckpointEntry> newest = newest_whole(facts_.run);
  if (plan_.step == 0 || (newest && newest->step >= plan_.step)) return refuse("");
  const Outcome<Path> folder = begin_checkpoint(files_, facts_.run, plan_.step);
  if (!folder) return refuse(fmt::format("step {} could not be saved: {}", plan_.step, folder.error().why));
  order_ = {plan_.step, plan_.ranks, plan_.gate, *folder};
  write_ = Deadline::after(facts_.write, "the ranks' shards");
  stage_ = Stage::writing;
  if (const Outcome<void> told = board_.set(keys_.order(), text(order_)); !told)
    refuse(fmt::format("step {} could not be saved: {}", plan_.step, told.error().why));
}

void SalvageHost::collect(const std::vector<bool>& is_gone) {
  std::vector<SalvagePart> parts;
  for (const int rank : order_.ranks) {
    const auto said = board_.find(keys_.part(rank));
    if (!said || !*said) {
      if (is_gone[static_cast<std::size_t>(rank)] || write_->has_passed())
        refuse(fmt::format("step {} could not be saved: rank {} was lost as well", order_.step, rank));
      return;
    }
    try {
      parts.push_back(parse_salvage_part(**said));
    } catch (const UserError& error) {
      return refuse(error.what());
    }
    if (!parts.back().why.empty())
      return refuse(
          fmt::format("step {} could not be saved: rank {}: {}", order_.step, rank, parts.back().why));
  }
  commit(parts);
}

void SalvageHost::commit(const std::vector<SalvagePart>& parts) {
  const TrainingState& state = parts.front().state;
  stage_ = Stage::over;
  for (const SalvagePart& part : parts)
    if (part.state != state || state.step != order_.step) {
      why_not_ = fmt::format("step {} could not be saved: the ranks report different states", order_.step);
      return;
    }
  CommitOptions options{.num_writers = static_cast<int>(parts.size()), .files = facts_.small_files};
  options.files.push_back({std::string(kTrainingStateFile), training_state_text(state)});
  for (SmallFile& file : options.files)  // as they were when the run began
    if (file.name == "plan.json")
      file.content = read_file(plan_path(facts_.run, epoch_)).value_or(file.content);
  if (const Outcome<Path> done = commit_checkpoint(files_, order_.folder, options); !done) {
    why_not_ = fmt::format("step {} could not be saved: {}", order_.step, done.error().why);
    return;
  }
  is_saved_ = true;
  Retention retention = facts_.retention;
  retention.newest = order_.step;
  (void)apply_retention(files_, facts_.run, retention);
  // Rank 0 may have been lost after a step and before it wrote the step's line.
  for (const SalvagePart& part : parts)
    if (!part.metrics.empty()) {
      (void)complete_metrics(files_, facts_.run / "metrics.jsonl", order_.step, part.metrics);
      return;
    }
}

std::string SalvageHost::last_checkpoint() const {
  std::optional<CheckpointEntry> newest;
  bool is_in_memory = false;
  try {
    newest = newest_whole(facts_.run);
    const auto kept = facts_.memory ? newest_whole(*facts_.memory) : std::nullopt;
    is_in_memory = kept && (!newest || kept->step > newest->step);
    if (is_in_memory) newest = kept;
  } catch (const UserError&) {  // unreadable: no checkpoint can be named
  }
  if (!newest) return stage_ == Stage::nobody ? "" : "; there is no checkpoint yet";
  const std::int64_t age = plan_.step - newest->step;
  const std::string how_old =
      age > 0 ? fmt::format(", {} step{} older", age, age == 1 ? "" : "s") : std::string();
  return fmt::format("; the last complete checkpoint is from step {}{}{}: optimus train --resume {}",
                     newest->step, is_in_memory ? ", in memory" : "", how_old, facts_.run.string());
}

std::string SalvageHost::finish() {
  if (!is_saved_ && !order_.folder.empty()) abandon_checkpoint(files_, order_.folder);
  // Leftovers of a save that was in progress; a resume would remove them too.
  (void)clear_leftovers(files_, facts_.run);
  if (facts_.memory) (void)clear_leftovers(files_, *facts_.memory);
  if (stage_ == Stage::coming || stage_ == Stage::writing)
    why_not_ = "the run was ended before more could be saved";
  if (!is_saved_) return why_it_ends_ + (why_not_.empty() ? "" : "; " + why_not_) + last_checkpoint();
  const std::size_t count = order_.ranks.size();
  const bool are_all = count == num_holders_;
  return fmt::format("{}; {} saved step {}: optimus train --resume {}", why_it_ends_,
                     count == 1 ? fmt::format("rank {}", order_.ranks[0])
                     : are_all  ? fmt::format("all {} ranks", count)
                                : fmt::format("the other {} ranks", count),
                     order_.step, facts_.run.string());
}

}  // namespace optimus
