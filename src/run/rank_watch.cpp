// See rank_watch.h.
#include "run/rank_watch.h"

#include "run/pulse.h"
#include "run/regrouping.h"
#include "run/salvage.h"

namespace optimus {
namespace {

constexpr std::chrono::milliseconds kLookEvery{50};
constexpr std::chrono::seconds kLongestSilence{2};  // of the store; then it is gone, or this host is cut off

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

// Said again and again: what was abandoned is forgotten when the rank regroups.
bool RankWatch::look() {
  int generation = 0;
  {
    const std::lock_guard lock(mutex_);
    generation = generation_;
  }
  if (!store_->set(prefix_ + pulse_key(seat_), std::to_string(++num_looks_))) return false;
  const auto somebody = store_->find(prefix_ + SalvageKeys{generation}.somebody());
  const auto meet = store_->find(prefix_ + meet_key(generation));
  if (!somebody || !meet) return false;
  const std::lock_guard lock(mutex_);
  if (generation != generation_) return true;
  if (*somebody) comm_.abandon("others were lost");
  if (*meet) wants_to_meet_ = true;
  return true;
}

void RankWatch::watch() {
  auto answered = std::chrono::steady_clock::now();
  while (!is_over_) {
    const auto now = std::chrono::steady_clock::now();
    if (look())
      answered = now;
    else if (now - answered > kLongestSilence)
      comm_.abandon("the run's store is gone");
    std::this_thread::sleep_for(kLookEvery);
  }
}

}  // namespace optimus
