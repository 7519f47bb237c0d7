// Implements emergency_checkpoint_host.h.
#include "elastic/emergency_checkpoint_host.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "elastic/heartbeat.h"
#include "observe/metrics.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "rundir/plan_files.h"

namespace optimus {

EmergencyCheckpointHost::EmergencyCheckpointHost(Board& board, FileSystem& files,
                                                 EmergencyCheckpointOptions options)
    : board_(board), files_(files), options_(std::move(options)) {
  if (options_.coordinator != nullptr) keys_.generation = options_.coordinator->membership().generation;
}

std::vector<bool> EmergencyCheckpointHost::by_rank(const std::vector<bool>& is_gone) const {
  if (options_.coordinator == nullptr) return is_gone;
  std::vector<bool> result;
  for (const int worker_id : options_.coordinator->membership().worker_ids)
    result.push_back(is_gone.at(static_cast<std::size_t>(worker_id)));
  return result;
}

bool EmergencyCheckpointHost::poll(const std::vector<bool>& is_gone_worker) {
  const std::vector<bool> is_gone = by_rank(is_gone_worker);
  num_ranks_ = static_cast<int>(is_gone.size());
  switch (stage_) {
    case Stage::idle: {
      const auto first_report = board_.find(keys_.first_report());
      if (!first_report || !*first_report) return false;
      report_deadline_ = Deadline::after(options_.report_timeout, "survivor states");
      slow_rank_deadline_ = Deadline::after(options_.slow_rank_grace, "survivor states of slow ranks");
      partition_deadline_ = Deadline::after(options_.partition_timeout, "the larger partition");
      stage_ = Stage::collecting;
      [[fallthrough]];
    }
    case Stage::collecting:
      collect_survivor_states();
      update_heartbeats();
      if (options_.coordinator != nullptr && has_claim(options_.run, keys_.generation + 1)) {
        // Adopts the decision of the other partition if it includes these ranks.
        if (!continue_run()) refuse("the other ranks of the run have continued without this partition");
        break;
      }
      if (!have_all_reported(is_gone) || !has_majority()) break;
      if (options_.coordinator != nullptr &&
          options_.coordinator->should_wait_for_lost(all_survivor_states()))
        break;
      decide();
      break;
    case Stage::writing:
      collect(is_gone);
      break;
    case Stage::finished:
      break;
  }
  return stage_ != Stage::finished && stage_ != Stage::idle;
}

void EmergencyCheckpointHost::stop_waiting() {
  constexpr Seconds kReportGrace{0.2};  // mpirun sends SIGKILL one second after SIGTERM
  if (is_ending_run_ || stage_ != Stage::collecting) return;
  is_ending_run_ = true;
  if (report_deadline_->remaining() > kReportGrace)
    report_deadline_ = Deadline::after(kReportGrace, "survivor states");
}

void EmergencyCheckpointHost::collect_survivor_states() {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (survivor_states_.contains(rank)) continue;
    const auto value = board_.find(keys_.survivor_state(rank));
    if (!value || !*value) continue;
    try {
      SurvivorState survivor_state = parse_survivor_state(**value);
      if (survivor_state.rank == rank) survivor_states_.emplace(rank, std::move(survivor_state));
    } catch (const UserError&) {  // treated like a missing report
    }
    late_deadline_ = Deadline::after(options_.late_grace, "missing ranks");
  }
}

// A slow process is not lost. Its heartbeat continues (heartbeat.h), and it reports later.
void EmergencyCheckpointHost::update_heartbeats() {
  constexpr Seconds kHeartbeatTimeout{2};
  if (options_.coordinator == nullptr) return;
  const std::vector<int>& worker_ids = options_.coordinator->membership().worker_ids;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const auto value = board_.find(heartbeat_key(worker_ids[static_cast<std::size_t>(rank)]));
    if (!value || !*value) continue;
    const auto it = heartbeats_.find(rank);
    if (it == heartbeats_.end() || it->second.first != **value)
      heartbeats_.insert_or_assign(rank,
                                   std::pair(**value, Deadline::after(kHeartbeatTimeout, "a heartbeat")));
  }
}

bool EmergencyCheckpointHost::has_heartbeat(int rank) const {
  const auto it = heartbeats_.find(rank);
  return it != heartbeats_.end() && !it->second.second.has_passed() && !slow_rank_deadline_->has_passed() &&
         !is_ending_run_;
}

// Ranks that exited without a report will not report. Ranks that others report as missing may still report
// soon, because they may have been waiting for other ranks.
bool EmergencyCheckpointHost::have_all_reported(const std::vector<bool>& is_gone) const {
  std::set<int> missing_ranks;
  for (const auto& [rank, survivor_state] : survivor_states_)
    missing_ranks.insert(survivor_state.missing.begin(), survivor_state.missing.end());
  bool are_reports_expected = false, are_all_missed = true;
  const bool are_leavers_needed =
      options_.coordinator == nullptr || options_.coordinator->needs_leaving_ranks(all_survivor_states());
  const std::size_t num_expected =
      are_leavers_needed ? is_gone.size() : options_.coordinator->remaining_workers().size();
  for (int rank = 0; rank < static_cast<int>(num_expected); ++rank) {
    if (survivor_states_.contains(rank) || is_gone[static_cast<std::size_t>(rank)]) continue;
    if (has_heartbeat(rank)) return false;
    are_reports_expected = true;
    are_all_missed = are_all_missed && missing_ranks.contains(rank);
  }
  return !are_reports_expected || report_deadline_->has_passed() ||
         (are_all_missed && late_deadline_->has_passed());
}

// If only half of the ranks or fewer are reachable, they may be an isolated partition. They wait, so that the
// larger partition can act first.
bool EmergencyCheckpointHost::has_majority() const {
  if (options_.coordinator == nullptr || !options_.may_be_partitioned || is_ending_run_ ||
      partition_deadline_->has_passed())
    return true;
  std::ptrdiff_t num_unknown = 0;
  const std::vector<int> remaining_workers = options_.coordinator->remaining_workers();
  for (int rank = 0; rank < static_cast<int>(remaining_workers.size()); ++rank) {
    const auto lost_value = board_.find(lost_key(remaining_workers[static_cast<std::size_t>(rank)]));
    num_unknown += !survivor_states_.contains(rank) && !(lost_value && *lost_value && **lost_value == kEnded);
  }
  return std::ssize(survivor_states_) > num_unknown;
}

void EmergencyCheckpointHost::refuse(const std::string& why) {
  save_error_ = why;
  (void)board_.set(keys_.order(), text(EmergencyCheckpointOrder{}));
  stage_ = Stage::finished;
}

// Plans change only between steps, and the state of a rank that failed during a change is marked as torn. So
// all usable states have the layout of one plan.
void EmergencyCheckpointHost::load_layout() {
  for (const auto& [rank, survivor_state] : survivor_states_)
    if (!survivor_state.is_torn) epoch_ = std::max(epoch_, survivor_state.epoch);
  const Plan plan = read_plan(plan_path(options_.run, epoch_));
  layout_ = layout_with_copies(plan, options_.model, StateKind::optimizer);
  num_holders_ = static_cast<std::size_t>(num_devices(plan));
}

std::vector<SurvivorState> EmergencyCheckpointHost::all_survivor_states() const {
  std::vector<SurvivorState> result;
  for (const auto& [rank, survivor_state] : survivor_states_) result.push_back(survivor_state);
  return result;
}

// If the run continues, the host waits for the next loss.
bool EmergencyCheckpointHost::continue_run() {
  if (options_.coordinator == nullptr) return false;
  const auto order = options_.coordinator->change_membership(all_survivor_states());
  if (!order) {
    continue_error_ = fmt::format("; the remaining ranks cannot continue: {}", order.error());
    return false;
  }
  const std::string key = keys_.change_membership();
  keys_.generation = order->membership.generation, stage_ = Stage::idle;
  survivor_states_.clear(), heartbeats_.clear(), report_deadline_.reset(), late_deadline_.reset(),
      is_ending_run_ = false;
  return board_.set(key, text(*order)).has_value();
}

void EmergencyCheckpointHost::decide() {
  if (continue_run()) return;
  try {
    load_layout();
  } catch (const ReportedError& error) {
    return refuse(error.what());
  }
  std::vector<SurvivorState> states_of_epoch;
  for (const auto& [rank, survivor_state] : survivor_states_)
    if (survivor_state.epoch == epoch_) states_of_epoch.push_back(survivor_state);
  plan_ = plan_emergency_checkpoint(layout_, states_of_epoch);
  if (!plan_.is_whole()) return refuse("state lost with the ranks: " + lost_text(layout_, plan_.lost));
  std::optional<CheckpointEntry> newest = newest_complete(options_.run);
  if (plan_.step == 0 || (newest && newest->step >= plan_.step)) return refuse("");
  const Outcome<Path> folder = begin_checkpoint(files_, options_.run, plan_.step);
  if (!folder) return refuse(fmt::format("step {} could not be saved: {}", plan_.step, folder.error().why));
  order_ = {plan_.step, plan_.ranks, plan_.gate, *folder};
  write_deadline_ = Deadline::after(options_.write_timeout, "the ranks' shards");
  stage_ = Stage::writing;
  if (const Outcome<void> published = board_.set(keys_.order(), text(order_)); !published)
    refuse(fmt::format("step {} could not be saved: {}", plan_.step, published.error().why));
}

void EmergencyCheckpointHost::collect(const std::vector<bool>& is_gone) {
  std::vector<EmergencyCheckpointPart> parts;
  for (const int rank : order_.ranks) {
    const auto value = board_.find(keys_.part(rank));
    if (!value || !*value) {
      if (is_gone[static_cast<std::size_t>(rank)] || write_deadline_->has_passed())
        refuse(fmt::format("step {} could not be saved: rank {} was lost as well", order_.step, rank));
      return;
    }
    try {
      parts.push_back(parse_emergency_checkpoint_part(**value));
    } catch (const UserError& error) {
      return refuse(error.what());
    }
    if (!parts.back().why.empty())
      return refuse(
          fmt::format("step {} could not be saved: rank {}: {}", order_.step, rank, parts.back().why));
  }
  commit(parts);
}

void EmergencyCheckpointHost::commit(const std::vector<EmergencyCheckpointPart>& parts) {
  const TrainingState& state = parts.front().state;
  stage_ = Stage::finished;
  for (const EmergencyCheckpointPart& part : parts)
    if (part.state != state || state.step != order_.step) {
      save_error_ = fmt::format("step {} could not be saved: the ranks report different states", order_.step);
      return;
    }
  CommitOptions options{.num_writers = static_cast<int>(parts.size()), .files = options_.small_files};
  options.files.push_back({std::string(kTrainingStateFile), training_state_text(state)});
  for (SmallFile& file : options.files)  // the content of the files is from the start of the run
    if (file.name == "plan.json")
      file.content = read_file(plan_path(options_.run, epoch_)).value_or(file.content);
  if (const Outcome<Path> checkpoint = commit_checkpoint(files_, order_.folder, options); !checkpoint) {
    save_error_ = fmt::format("step {} could not be saved: {}", order_.step, checkpoint.error().why);
    return;
  }
  is_saved_ = true;
  Retention retention = options_.retention;
  retention.newest = order_.step;
  (void)apply_retention(files_, options_.run, retention);
  // Rank 0 may have been lost after the step but before it wrote the metrics of the step.
  for (const EmergencyCheckpointPart& part : parts)
    if (!part.metrics.empty()) {
      (void)complete_metrics(files_, options_.run / "metrics.jsonl", order_.step, part.metrics);
      return;
    }
}

std::string EmergencyCheckpointHost::last_checkpoint() const {
  std::optional<CheckpointEntry> newest;
  bool is_in_memory = false;
  try {
    newest = newest_complete(options_.run);
    const auto newest_in_memory = options_.memory ? newest_complete(*options_.memory) : std::nullopt;
    is_in_memory = newest_in_memory && (!newest || newest_in_memory->step > newest->step);
    if (is_in_memory) newest = newest_in_memory;
  } catch (const ReportedError&) {  // the folder is unreadable, so the message does not name a checkpoint
  }
  if (!newest) return stage_ == Stage::idle ? "" : "; there is no checkpoint yet";
  const std::int64_t age = plan_.step - newest->step;
  const std::string age_text =
      age > 0 ? fmt::format(", {} step{} older", age, age == 1 ? "" : "s") : std::string();
  return fmt::format("; the last complete checkpoint is from step {}{}{}: optimus train --resume {}",
                     newest->step, is_in_memory ? ", in memory" : "", age_text, options_.run.string());
}

std::string EmergencyCheckpointHost::finish() {
  if (!is_saved_ && !order_.folder.empty()) abandon_checkpoint(files_, order_.folder);
  // Removes the files of an incomplete save. A resume would also remove them.
  (void)clear_leftovers(files_, options_.run);
  if (options_.memory) (void)clear_leftovers(files_, *options_.memory);
  if (stage_ == Stage::collecting || stage_ == Stage::writing)
    save_error_ = "the run was stopped before the remaining ranks could save their state";
  if (!is_saved_)
    return continue_error_ + (save_error_.empty() ? "" : "; " + save_error_) + last_checkpoint();
  const std::size_t count = order_.ranks.size();
  const bool are_all = count == num_holders_;
  return fmt::format("{}; {} saved step {}: optimus train --resume {}", continue_error_,
                     count == 1 ? fmt::format("rank {}", order_.ranks[0])
                     : are_all  ? fmt::format("all {} ranks", count)
                                : fmt::format("the other {} ranks", count),
                     order_.step, options_.run.string());
}

}  // namespace optimus
