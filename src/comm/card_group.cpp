// Implements card_group.h: GPU checks and the watchdog. The calls to NCCL are in nccl_group.cpp.
#include "comm/card_group.h"

#include <fmt/format.h>

#include <map>

namespace optimus {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{5};
constexpr std::chrono::microseconds kBetweenLooksOfSettle{50};

}  // namespace

std::string why_not_by_cards(const std::vector<int>& members, const std::vector<std::string>& cards) {
  std::map<std::string, int> first;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (cards[i].empty()) return fmt::format("rank {} has no GPU that NCCL can use", members[i]);
    const auto [at, is_new] = first.emplace(cards[i], members[i]);
    if (!is_new)
      return fmt::format("ranks {} and {} share a GPU; NCCL needs one GPU per rank", at->second, members[i]);
  }
  return "";
}

CardWatch::~CardWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CardWatch::add(std::shared_ptr<CardGroup> group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(group));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
}

void CardWatch::remove(const CardGroup& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [&](const auto& other) { return other.get() == &group; });
}

std::vector<std::shared_ptr<CardGroup>> CardWatch::groups() {
  const std::lock_guard lock(mutex_);
  return groups_;
}

void CardWatch::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kBetweenLooks, [&] { return is_over_; })) {
    const std::vector<std::shared_ptr<CardGroup>> all = groups_;
    lock.unlock();
    for (const std::shared_ptr<CardGroup>& group : all) group->look(), group->bury();
    lock.lock();
  }
}

CommOutcome<void> CardWatch::settle(const Deadline& deadline) {
  for (const std::shared_ptr<CardGroup>& group : groups()) {
    group->limit(deadline);
    while (true) {
      group->look();
      if (CommOutcome<void> state = group->state(); !state) return state;
      if (group->is_idle()) break;
      std::this_thread::sleep_for(kBetweenLooksOfSettle);
    }
  }
  return {};
}

}  // namespace optimus
