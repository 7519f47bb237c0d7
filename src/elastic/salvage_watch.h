// Runs a SalvageHost on a thread of its own, for a process that hosts the store and is also a rank.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "elastic/salvage_host.h"

namespace optimus {

class SalvageWatch {
 public:
  // who_is_gone: [rank], ranks that are known to have ended; is_in_haste: whether the launcher is ending the
  // run. Called only while a save is in progress, from the thread. All arguments must outlive this.
  SalvageWatch(Board& board, FileSystem& files, SalvageFacts facts,
               std::function<std::vector<bool>()> who_is_gone, std::function<bool()> is_in_haste)
      : host_(board, files, std::move(facts)),
        who_is_gone_(std::move(who_is_gone)),
        is_in_haste_(std::move(is_in_haste)),
        thread_([this] { watch(); }) {}
  ~SalvageWatch() { stop(); }
  SalvageWatch(const SalvageWatch&) = delete;

  // Called when this process has nothing more to do for the run: waits for a save in progress, which has
  // deadlines.
  void end() {
    stop();
    while (look()) std::this_thread::sleep_for(kPause);
  }
  // See SalvageHost::finish(); call after end().
  std::string finish() { return host_.finish(); }

 private:
  static constexpr std::chrono::milliseconds kPause{50};
  void stop() {
    is_over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  bool look() {
    if (is_under_way_) gone_ = who_is_gone_();
    if (is_under_way_ && is_in_haste_()) host_.hurry();
    return is_under_way_ = host_.look(gone_);
  }
  void watch() {
    gone_ = who_is_gone_();
    while (!is_over_) {
      look();
      std::this_thread::sleep_for(kPause);
    }
  }

  SalvageHost host_;
  const std::function<std::vector<bool>()> who_is_gone_;
  const std::function<bool()> is_in_haste_;
  bool is_under_way_ = false;
  std::vector<bool> gone_;
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

}  // namespace optimus
