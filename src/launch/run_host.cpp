// Implements run_host.h.
#include "launch/run_host.h"

#include <fmt/format.h>

#include <algorithm>

#include "elastic/pulse.h"

namespace optimus {
namespace {

constexpr std::chrono::milliseconds kHostLooksEvery{50};
// Seconds beyond the silence limit, for a rank that is only slow to report.
constexpr double kSecondChance = 1.5;

SalvageFacts with_regrouping(SalvageFacts facts, Regrouping& regrouping) {
  facts.regrouping = &regrouping;
  return facts;
}

}  // namespace

RunHost::RunHost(Board& board, FileSystem& files, RunHostFacts facts)
    : board_(board),
      silence_(facts.silence),
      is_in_haste_(std::move(facts.is_in_haste)),
      regrouping_(facts.last ? Regrouping(board_, std::move(facts.regrouping), facts.workers, *facts.last)
                             : Regrouping(board_, std::move(facts.regrouping), facts.workers, facts.plan,
                                          facts.epoch)),
      salvage_(board_, files, with_regrouping(std::move(facts.salvage), regrouping_)),
      thread_([this] { watch(); }) {}

RunHost::~RunHost() { stop(); }

void RunHost::stop() {
  is_over_ = true;
  if (thread_.joinable()) thread_.join();
}

void RunHost::end() {
  stop();
  while (look()) std::this_thread::sleep_for(kHostLooksEvery);
}

void RunHost::watch() {
  while (!is_over_) {
    look();
    std::this_thread::sleep_for(kHostLooksEvery);
  }
}

// Fetches all keys of a regular poll in one request: the store may share a core with a device, and there may
// be many ranks.
void RunHost::fetch() {
  // Keys of lost workers before keys of reports: a worker that reports and then ends is never seen as lost
  // without a report.
  std::vector<std::string> keys;
  for (int seat = 0; seat < static_cast<int>(regrouping_.workers().size()); ++seat)
    keys.push_back(gone_key(seat));
  for (std::string& key : regrouping_.watched_keys()) keys.push_back(std::move(key));
  board_.fetch(keys);
}

void RunHost::take_pulses() {
  const auto now = Deadline::Clock::now();
  for (const int seat : regrouping_.staying()) {
    const auto said = board_.find(pulse_key(seat));
    if (!said || !*said) continue;  // has not begun
    const std::optional<Pulse> pulse = parse_pulse(**said);
    const std::int64_t step = pulse ? pulse->step : 0;
    const auto [found, is_new] = pulses_.try_emplace(seat, Beat{**said, now, step});
    if (is_new || found->second.last == **said) continue;
    if (found->second.step != step) got_on_ = now;
    found->second = {**said, now, step};
  }
}

// Seconds since the last heartbeat, or since the training last advanced, which requires all ranks: a rank
// whose heartbeats are lost on a congested network still trains.
double RunHost::silent_for(int seat) const {
  const auto found = pulses_.find(seat);
  if (found == pulses_.end()) return 0;
  const auto heard = std::max(found->second.since, got_on_);
  return std::chrono::duration<double>(Deadline::Clock::now() - heard).count();
}

std::vector<bool> RunHost::who_is_gone() {
  std::vector<bool> result;
  for (int seat = 0; seat < static_cast<int>(regrouping_.workers().size()); ++seat) {
    const auto gone = board_.find(gone_key(seat));
    result.push_back((gone && *gone) || silent_for(seat) > silence_.value + kSecondChance);
  }
  return result;
}

bool RunHost::look() {
  fetch();
  take_pulses();
  regrouping_.look();
  const std::vector<bool> is_gone = who_is_gone();
  const Membership& members = regrouping_.membership();
  bool have_ended = true;
  for (std::size_t rank = 0; rank < regrouping_.staying().size(); ++rank) {
    const int seat = members.seats[rank];
    const bool has_gone = is_gone[static_cast<std::size_t>(seat)];
    const bool is_silent = silent_for(seat) > silence_.value;
    const bool has_reported = regrouping_.report_of(seat).has_value();
    have_ended = have_ended && (has_gone || has_reported);
    if ((!has_gone && !is_silent) || has_reported) continue;
    const std::string what = regrouping_.what_hangs(seat);
    const std::string how = !what.empty() ? "hangs: " + what
                            : is_silent   ? "does not respond"
                                          : "has disconnected";
    const WorkerEntry& who = regrouping_.workers()[static_cast<std::size_t>(seat)];
    regrouping_.note_lost(seat,
                          fmt::format("rank {} (process {} on {}, which {})", rank, who.pid, who.host, how));
    regrouping_.rouse();
  }
  have_all_ended_ = have_ended;
  if (is_under_way_ && is_in_haste_()) salvage_.hurry();
  return is_under_way_ = salvage_.look(is_gone);
}

}  // namespace optimus
