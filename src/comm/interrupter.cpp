// See interrupter.h.
#include "comm/interrupter.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/operation.h"

namespace optimus {
namespace {

constexpr std::chrono::milliseconds kLookUp{50};
// Longer than any of our deadlines: Gloo's own timeout must never fire first.
constexpr std::chrono::milliseconds kGlooPatience{std::chrono::hours(24 * 365)};
// Gloo does not report a connection that closes in the middle of a message: check it after this many
// interruptions.
constexpr int kLookUpsBetweenChecks = 10;

}  // namespace

Interrupter::Interrupter() : thread_([this] { run(); }) {}

Interrupter::~Interrupter() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Interrupter::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLookUp, [&] { return is_over_; }))
    for (WireMessage* transfer : waited_for_) transfer->interrupt();
}

void Interrupter::interrupt_all() {
  const std::lock_guard lock(mutex_);
  for (WireMessage* transfer : waited_for_) transfer->interrupt();
}

void Interrupter::wait(WireMessage& transfer, Wire& link, int place, const Limits& limits) {
  {
    const std::lock_guard lock(mutex_);
    waited_for_.push_back(&transfer);
  }
  struct Leaving {
    Interrupter& self;
    WireMessage* transfer;
    ~Leaving() {
      const std::lock_guard lock(self.mutex_);
      std::erase(self.waited_for_, transfer);
    }
  } leaving{*this, &transfer};
  for (int looks = 1; true; ++looks) {
    if (const std::optional<std::string> reason = limits.stop())
      throw LinkError{LinkError::Kind::stopped, place, *reason};
    if (transfer.wait(kGlooPatience)) return;
    if (limits.deadline.has_passed())
      throw LinkError{LinkError::Kind::deadline, place, deadline_text(limits.deadline)};
    if (looks % kLookUpsBetweenChecks == 0) link.check(place);
  }
}

}  // namespace optimus
