// See interrupter.h.
#include "comm/interrupter.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/operation.h"

namespace optimus {
namespace {

constexpr std::chrono::milliseconds kCheckInterval{50};
// Longer than the deadline of any operation, because Gloo's own timeout must never expire first.
constexpr std::chrono::milliseconds kGlooTimeout{std::chrono::hours(24 * 365)};
// Gloo does not report a connection that closes in the middle of a message, so the connection is checked
// after this many interruptions.
constexpr int kWaitsPerLinkCheck = 10;

}  // namespace

Interrupter::Interrupter() : thread_([this] { run(); }) {}

Interrupter::~Interrupter() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Interrupter::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kCheckInterval, [&] { return is_stopping_; }))
    for (LinkMessage* transfer : waited_for_) transfer->interrupt();
}

void Interrupter::interrupt_all() {
  const std::lock_guard lock(mutex_);
  for (LinkMessage* transfer : waited_for_) transfer->interrupt();
}

void Interrupter::wait(LinkMessage& transfer, GroupLink& link, int member_index, const Limits& limits) {
  {
    const std::lock_guard lock(mutex_);
    waited_for_.push_back(&transfer);
  }
  struct WaiterGuard {
    Interrupter& self;
    LinkMessage* transfer;
    ~WaiterGuard() {
      const std::lock_guard lock(self.mutex_);
      std::erase(self.waited_for_, transfer);
    }
  } guard{*this, &transfer};
  for (int num_waits = 1; true; ++num_waits) {
    if (const std::optional<std::string> reason = limits.stop())
      throw LinkError{LinkError::Kind::stopped, member_index, *reason};
    if (transfer.wait(kGlooTimeout)) return;
    if (limits.deadline.has_passed())
      throw LinkError{LinkError::Kind::deadline, member_index, deadline_text(limits.deadline)};
    if (num_waits % kWaitsPerLinkCheck == 0) link.check(member_index);
  }
}

}  // namespace optimus
