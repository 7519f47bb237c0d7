// Implements run_host.h.
#include "launch/run_host.h"

#include <fmt/format.h>

#include <algorithm>

#include "elastic/heartbeat.h"

namespace optimus {
namespace {

constexpr std::chrono::milliseconds kPollInterval{50};
// Additional seconds after the silence limit until a silent rank is considered lost, because it may only be
// slow to report.
constexpr double kExtraSilence = 1.5;

EmergencyCheckpointOptions with_coordinator(EmergencyCheckpointOptions options,
                                            MembershipCoordinator& coordinator) {
  options.coordinator = &coordinator;
  return options;
}

}  // namespace

RunHost::RunHost(Board& board, FileSystem& files, RunHostOptions options)
    : board_(board),
      silence_limit_(options.silence),
      coordinator_(options.last_change ? MembershipCoordinator(board_, std::move(options.coordinator),
                                                               options.workers, *options.last_change)
                                       : MembershipCoordinator(board_, std::move(options.coordinator),
                                                               options.workers, options.plan, options.epoch)),
      emergency_checkpoint_(board_, files,
                            with_coordinator(std::move(options.emergency_checkpoint), coordinator_)),
      thread_([this] { watch(); }) {}

RunHost::~RunHost() { stop(); }

void RunHost::stop() {
  is_stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

void RunHost::end() {
  stop();
  while (poll()) std::this_thread::sleep_for(kPollInterval);
}

void RunHost::watch() {
  while (!is_stopping_) {
    poll();
    std::this_thread::sleep_for(kPollInterval);
  }
}

// Fetches all keys of a regular poll in one request, because there may be many ranks and the store may share
// a CPU core with a worker.
void RunHost::fetch() {
  // The keys of lost workers come before the keys of reports. So a worker that reports and then exits never
  // appears to be lost without a report.
  std::vector<std::string> keys;
  for (int worker_id = 0; worker_id < static_cast<int>(coordinator_.workers().size()); ++worker_id)
    keys.push_back(lost_key(worker_id));
  for (std::string& key : coordinator_.watched_keys()) keys.push_back(std::move(key));
  board_.fetch(keys);
}

void RunHost::update_heartbeats() {
  const auto now = Deadline::Clock::now();
  for (const int worker_id : coordinator_.remaining_workers()) {
    const auto value = board_.find(heartbeat_key(worker_id));
    if (!value || !*value) continue;  // the worker has not begun
    const std::optional<Heartbeat> heartbeat = parse_heartbeat(**value);
    const std::int64_t step = heartbeat ? heartbeat->step : 0;
    const auto [entry, is_new] = heartbeats_.try_emplace(worker_id, LastHeartbeat{**value, now, step});
    if (is_new || entry->second.last_value == **value) continue;
    if (entry->second.step != step) last_progress_ = now;
    entry->second = {**value, now, step};
  }
}

// Seconds since the last heartbeat of this worker or the last step of the training, whichever is later. Every
// step requires all ranks, so a rank is not silent if steps complete while its heartbeats are delayed by a
// congested network.
double RunHost::silence_of(int worker_id) const {
  const auto it = heartbeats_.find(worker_id);
  if (it == heartbeats_.end()) return 0;
  const auto last_sign = std::max(it->second.change_time, last_progress_);
  return std::chrono::duration<double>(Deadline::Clock::now() - last_sign).count();
}

std::vector<bool> RunHost::find_lost_workers() {
  std::vector<bool> result;
  for (int worker_id = 0; worker_id < static_cast<int>(coordinator_.workers().size()); ++worker_id) {
    const auto lost_text = board_.find(lost_key(worker_id));
    result.push_back((lost_text && *lost_text) ||
                     silence_of(worker_id) > silence_limit_.value + kExtraSilence);
  }
  return result;
}

bool RunHost::poll() {
  fetch();
  update_heartbeats();
  coordinator_.poll();
  const std::vector<bool> is_gone = find_lost_workers();
  const Membership& members = coordinator_.membership();
  bool have_ended = true;
  for (std::size_t rank = 0; rank < coordinator_.remaining_workers().size(); ++rank) {
    const int worker_id = members.worker_ids[rank];
    const bool is_lost = is_gone[static_cast<std::size_t>(worker_id)];
    const bool is_silent = silence_of(worker_id) > silence_limit_.value;
    const bool has_reported = coordinator_.report_of(worker_id).has_value();
    have_ended = have_ended && (is_lost || has_reported);
    if ((!is_lost && !is_silent) || has_reported) continue;
    const std::string hang = coordinator_.hang_of(worker_id);
    const std::string description = !hang.empty() ? "hangs: " + hang
                                    : is_silent   ? "does not respond"
                                                  : "has disconnected";
    const WorkerEntry& worker = coordinator_.workers()[static_cast<std::size_t>(worker_id)];
    coordinator_.record_lost(worker_id, fmt::format("rank {} (process {} on {}, which {})", rank, worker.pid,
                                                    worker.host, description));
    coordinator_.request_survivor_states();
  }
  have_all_ended_ = have_ended;
  return is_in_progress_ = emergency_checkpoint_.poll(is_gone);
}

}  // namespace optimus
