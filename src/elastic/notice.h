// Notice before loss: a spot machine that is about to be taken says so in a file that appears, or at a URL of its provider. Whoever
// has read it leaves the run before that happens; nothing is computed again.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "cluster/launcher.h"
#include "rundir/worker_signals.h"

namespace optimus {

// What an answer of a provider means: HTTP 200 and anything but "FALSE", "NONE" and nothing is a notice (as Google's and Amazon's);
// of a JSON object with "Events", only those that take the machine (as Azure's: Preempt, Terminate).
bool is_notice(int status, std::string_view body);

// Looks once a second, all processes of a machine at the same instant, so that they leave together.
class Notice {
 public:
  struct Place {
    std::string host{};  // empty: path is a file's
    int port = 0;
    std::string path;
  };
  // A file's path, or http://HOST[:PORT]/PATH. Throws UserError when it is neither.
  static Place parse(const std::string& where);
  explicit Notice(const std::string& where);
  ~Notice();
  Notice(const Notice&) = delete;

  bool is_given() const { return is_given_; }

 private:
  void watch();
  bool wait_until(std::chrono::system_clock::time_point instant) const;  // false: it is over
  bool look() const;

  const Place place_;
  std::atomic<bool> is_given_ = false, is_over_ = false;
  std::thread thread_;
};

// The signals, or a notice: of $OPTIMUS_NOTICE where that is set, else of the run's --notice.
WorkerSignals with_notice(const WorkerSignals& signals, const std::string& option,
                          const Environment& environment);

}  // namespace optimus
