// Runs an EmergencyCheckpointHost on a separate thread. Used by a process that is a rank and also hosts the
// store.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/stop_token.h"
#include "elastic/emergency_checkpoint_host.h"

namespace optimus {

class EmergencyCheckpointWatch {
 public:
  // `find_lost_workers` returns for each rank whether it is known to have exited. `stop` is requested when
  // the launcher stops the run. The thread calls both while a save is in progress, and `find_lost_workers`
  // also when it starts. `board` and `files` must outlive this object.
  EmergencyCheckpointWatch(Board& board, FileSystem& files, EmergencyCheckpointOptions options,
                           std::function<std::vector<bool>()> find_lost_workers, StopToken stop)
      : host_(board, files, std::move(options)),
        find_lost_workers_(std::move(find_lost_workers)),
        stop_token_(std::move(stop)),
        thread_([this] { watch(); }) {}
  ~EmergencyCheckpointWatch() { stop(); }
  EmergencyCheckpointWatch(const EmergencyCheckpointWatch&) = delete;

  // Called when this process has completed its work for the run. Waits for a save in progress. Deadlines
  // limit the wait.
  void end() {
    stop();
    while (poll()) std::this_thread::sleep_for(kPause);
  }
  // See EmergencyCheckpointHost::finish(). Must be called after end().
  std::string finish() { return host_.finish(); }

 private:
  static constexpr std::chrono::milliseconds kPause{50};
  void stop() {
    is_stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }
  bool poll() {
    if (is_in_progress_) lost_workers_ = find_lost_workers_();
    if (is_in_progress_ && stop_token_.is_requested()) host_.stop_waiting();
    return is_in_progress_ = host_.poll(lost_workers_);
  }
  void watch() {
    lost_workers_ = find_lost_workers_();
    while (!is_stopping_) {
      poll();
      std::this_thread::sleep_for(kPause);
    }
  }

  EmergencyCheckpointHost host_;
  const std::function<std::vector<bool>()> find_lost_workers_;
  const StopToken stop_token_;
  bool is_in_progress_ = false;
  std::vector<bool> lost_workers_;
  std::atomic<bool> is_stopping_ = false;
  std::thread thread_;
};

}  // namespace optimus
