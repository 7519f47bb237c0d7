// Implements nccl_group.h: GPU checks and the watchdog. The calls to NCCL are in nccl_communicator.cpp.
#include "comm/nccl_group.h"

#include <fmt/format.h>

#include <map>

namespace optimus {
namespace {

constexpr std::chrono::milliseconds kPollInterval{5};
constexpr std::chrono::microseconds kSynchronizePollInterval{50};

}  // namespace

std::string why_nccl_is_unusable(const std::vector<int>& members, const std::vector<std::string>& gpu_ids) {
  std::map<std::string, int> first_users;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (gpu_ids[i].empty()) return fmt::format("rank {} has no GPU that NCCL can use", members[i]);
    const auto [first_user, is_new] = first_users.emplace(gpu_ids[i], members[i]);
    if (!is_new)
      return fmt::format("ranks {} and {} share a GPU; NCCL needs one GPU per rank", first_user->second,
                         members[i]);
  }
  return "";
}

NcclWatchdog::~NcclWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void NcclWatchdog::add(std::shared_ptr<NcclGroup> group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(group));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
}

void NcclWatchdog::remove(const NcclGroup& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [&](const auto& other) { return other.get() == &group; });
}

std::vector<std::shared_ptr<NcclGroup>> NcclWatchdog::groups() {
  const std::lock_guard lock(mutex_);
  return groups_;
}

void NcclWatchdog::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kPollInterval, [&] { return is_stopping_; })) {
    const std::vector<std::shared_ptr<NcclGroup>> groups = groups_;
    lock.unlock();
    for (const std::shared_ptr<NcclGroup>& group : groups) group->poll(), group->abort_failed();
    lock.lock();
  }
}

CommOutcome<void> NcclWatchdog::synchronize(const Deadline& deadline) {
  for (const std::shared_ptr<NcclGroup>& group : groups()) {
    group->set_deadline(deadline);
    while (true) {
      group->poll();
      if (CommOutcome<void> outcome = group->first_failure(); !outcome) return outcome;
      if (group->is_idle()) break;
      std::this_thread::sleep_for(kSynchronizePollInterval);
    }
  }
  return {};
}

}  // namespace optimus
