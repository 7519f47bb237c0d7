// Implements rank_watch.h.
#include "run/rank_watch.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/time_stamp.h"
#include "elastic/emergency_checkpoint.h"
#include "elastic/membership_coordinator.h"

namespace optimus {
namespace {

constexpr std::chrono::milliseconds kProbeInterval{50};
// If the store is silent for longer than this, the store is lost or this host is cut off. As long as steps
// complete, no rank is cut off, so all ranks stop together after a step.
constexpr std::chrono::seconds kMaxSilence{2};

}  // namespace

RankWatch::RankWatch(std::shared_ptr<KeyStore> store, std::string prefix, Comm& comm, int worker_id,
                     int generation)
    : store_(std::move(store)),
      prefix_(std::move(prefix)),
      comm_(comm),
      worker_id_(worker_id),
      generation_(generation),
      thread_([this] { watch(); }) {}

RankWatch::~RankWatch() {
  is_stopping_ = true;
  thread_.join();
}

void RankWatch::membership_changed(const Membership& membership) {
  const std::lock_guard lock(mutex_);
  generation_ = membership.generation, wants_membership_change_ = false;
}

Heartbeat RankWatch::heartbeat() {
  const StepHeartbeat::Snapshot snapshot = step_heartbeat_.snapshot();
  Heartbeat heartbeat{.number = ++num_probes_, .step = snapshot.step};
  if (snapshot.is_waiting)
    heartbeat.waiting = snapshot.seconds;
  else if (snapshot.seconds > snapshot.time_limit)
    heartbeat.hang_description =
        fmt::format("{} of block {} has taken {} instead of {}", text(snapshot.op), snapshot.block,
                    text(Seconds(snapshot.seconds)), text(Seconds(snapshot.expected)));
  return heartbeat;
}

// A hung thread cannot be killed, so the whole process exits. If the thread continues before that, the worker
// rejoins the run.
void RankWatch::end_if_abandoned(const Heartbeat& heartbeat) {
  constexpr Seconds kFinalTimeout{30};
  if (heartbeat.hang_description.empty()) return final_deadline_.reset();
  const auto lost = store_->find(prefix_ + lost_key(worker_id_));
  if (!lost || !*lost) return;
  if (!final_deadline_) final_deadline_ = Deadline::after(kFinalTimeout, "a hung thread");
  if (!final_deadline_->has_passed()) return;
  fmt::print(stderr, "{}{}; the other workers continued without this worker, so this process exits\n",
             time_stamp(), heartbeat.hang_description);
  std::fflush(stderr);
  std::_Exit(1);
}

// Repeated on every probe, because a membership change resets an abandoned Comm.
bool RankWatch::probe_store() {
  int generation = 0;
  {
    const std::lock_guard lock(mutex_);
    generation = generation_;
  }
  const Heartbeat current = heartbeat();
  const auto values = store_->query({{{prefix_ + heartbeat_key(worker_id_), text(current)}},
                                     {prefix_ + RecoveryKeys{generation}.first_report(),
                                      prefix_ + membership_change_key(generation), prefix_ + kStopKey}});
  if (!values) return false;
  const bool is_any_lost = (*values)[0].has_value(), is_change_requested = (*values)[1].has_value();
  if ((*values)[2]) is_end_requested_ = true;
  if (!has_announced_start_ && step_heartbeat_.has_worked())
    has_announced_start_ = store_->set(prefix_ + kStartedKey, "").has_value();
  end_if_abandoned(current);
  const std::lock_guard lock(mutex_);
  if (generation != generation_) return true;
  if (is_any_lost) comm_.abandon("other ranks were lost");
  if (is_change_requested) wants_membership_change_ = true;
  return true;
}

void RankWatch::watch() {
  auto last_answer = std::chrono::steady_clock::now(), last_progress = last_answer;
  std::int64_t step = 0;
  while (!is_stopping_) {
    const auto now = std::chrono::steady_clock::now();
    if (probe_store()) last_answer = now;
    const std::int64_t last = step_heartbeat_.snapshot().step;
    if (last != step) step = last, last_progress = now;
    if (now - std::max(last_answer, last_progress) > kMaxSilence)
      comm_.abandon("the run's store was lost");
    else if (now - last_answer > kMaxSilence)
      wants_membership_change_ = true;
    std::this_thread::sleep_for(kProbeInterval);
  }
}

}  // namespace optimus
