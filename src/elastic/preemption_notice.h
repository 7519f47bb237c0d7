// Preemption notices: a spot machine announces that it is about to be reclaimed through a file that appears,
// or at a URL of its provider. Its ranks then leave the run in time, and no work is repeated.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "base/stop_token.h"
#include "cluster/launcher.h"

namespace optimus {

// Interprets a provider's response: HTTP 200 is a notice unless the content is empty, "FALSE" or "NONE"
// (Google, Amazon); in a JSON object with "Events", only events that reclaim the machine count (Azure:
// Preempt, Terminate).
bool is_preemption_notice(int status, std::string_view body);

// Polls once a second, at the same instant in all processes of a machine, so that they leave together.
class PreemptionNotice {
 public:
  struct Place {
    std::string host{};  // if empty, `path` is a file
    int port = 0;
    std::string path;
  };
  // A file path, or http://HOST[:PORT]/PATH. Throws UserError for anything else.
  static Place parse(const std::string& source);
  explicit PreemptionNotice(const std::string& source);
  ~PreemptionNotice();
  PreemptionNotice(const PreemptionNotice&) = delete;

  bool is_given() const { return is_given_; }

 private:
  void watch();
  // Returns false if the watch was stopped.
  bool wait_until(std::chrono::system_clock::time_point instant) const;
  bool poll() const;

  const Place location_;
  std::atomic<bool> is_given_ = false, is_stopping_ = false;
  std::thread thread_;
};

// A token that is also requested to leave by a preemption notice: from $OPTIMUS_NOTICE if that is set, else
// from --notice.
StopToken with_preemption_notice(const StopToken& stop, const std::string& option,
                                 const Environment& environment);

}  // namespace optimus
