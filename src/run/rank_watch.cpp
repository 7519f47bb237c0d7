// Implements rank_watch.h.
#include "run/rank_watch.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/time_stamp.h"
#include "elastic/regrouping.h"
#include "elastic/salvage.h"

namespace optimus {
namespace {

constexpr std::chrono::milliseconds kLookEvery{50};
// The longest silence of the store. After that it is lost, or this host is cut off. While steps still
// complete no rank is cut off, so that all meet after a step.
constexpr std::chrono::seconds kLongestSilence{2};

}  // namespace

RankWatch::RankWatch(std::shared_ptr<KeyStore> store, std::string prefix, Comm& comm, int seat,
                     int generation)
    : store_(std::move(store)),
      prefix_(std::move(prefix)),
      comm_(comm),
      seat_(seat),
      generation_(generation),
      thread_([this] { watch(); }) {}

RankWatch::~RankWatch() {
  is_over_ = true;
  thread_.join();
}

void RankWatch::regrouped(const Membership& membership) {
  const std::lock_guard lock(mutex_);
  generation_ = membership.generation, wants_to_meet_ = false;
}

Pulse RankWatch::pulse() {
  const StepBeacon::Sight sight = beacon_.look();
  Pulse pulse{.number = ++num_looks_, .step = sight.step};
  if (sight.is_waiting)
    pulse.waiting = sight.seconds;
  else if (sight.seconds > sight.allowed)
    pulse.hangs = fmt::format("{} of block {} has taken {}, usually {}", text(sight.op), sight.block,
                              text(Seconds(sight.seconds)), text(Seconds(sight.usual)));
  return pulse;
}

// A thread cannot be killed, but a process can. If the thread resumes before that, the worker rejoins the
// run.
void RankWatch::end_if_given_up(const Pulse& pulse) {
  constexpr Seconds kLastChance{30};
  if (pulse.hangs.empty()) return last_chance_.reset();
  const auto gone = store_->find(prefix_ + gone_key(seat_));
  if (!gone || !*gone) return;
  if (!last_chance_) last_chance_ = Deadline::after(kLastChance, "a hung thread");
  if (!last_chance_->has_passed()) return;
  fmt::print(stderr, "{}{}; the other workers continued without this one, and this process ends\n",
             time_stamp(), pulse.hangs);
  std::fflush(stderr);
  std::_Exit(1);
}

// Repeated on every probe, because a membership change resets an abandoned Comm.
bool RankWatch::look() {
  int generation = 0;
  {
    const std::lock_guard lock(mutex_);
    generation = generation_;
  }
  const Pulse now = pulse();
  const auto found = store_->look(
      {{{prefix_ + pulse_key(seat_), text(now)}},
       {prefix_ + SalvageKeys{generation}.somebody(), prefix_ + meet_key(generation), prefix_ + kEndKey}});
  if (!found) return false;
  const bool is_somebody_lost = (*found)[0].has_value(), are_to_meet = (*found)[1].has_value();
  if ((*found)[2]) is_told_to_end_ = true;
  if (!has_said_begun_ && beacon_.has_worked())
    has_said_begun_ = store_->set(prefix_ + kBegunKey, "").has_value();
  end_if_given_up(now);
  const std::lock_guard lock(mutex_);
  if (generation != generation_) return true;
  if (is_somebody_lost) comm_.abandon("other ranks were lost");
  if (are_to_meet) wants_to_meet_ = true;
  return true;
}

void RankWatch::watch() {
  auto answered = std::chrono::steady_clock::now(), got_on = answered;
  std::int64_t step = 0;
  while (!is_over_) {
    const auto now = std::chrono::steady_clock::now();
    if (look()) answered = now;
    const std::int64_t last = beacon_.look().step;
    if (last != step) step = last, got_on = now;
    if (now - std::max(answered, got_on) > kLongestSilence)
      comm_.abandon("the run's store is lost");
    else if (now - answered > kLongestSilence)
      wants_to_meet_ = true;
    std::this_thread::sleep_for(kLookEvery);
  }
}

}  // namespace optimus
