// Preemption notices: before a spot machine is reclaimed, a file appears or a URL of the cloud provider
// announces it. The ranks on the machine then leave the run in time, so no work is repeated.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "base/stop_token.h"
#include "cluster/launcher.h"

namespace optimus {

// Interprets the response of a cloud provider. HTTP 200 is a notice unless the content is empty, "FALSE" or
// "NONE" (Google, Amazon). In a JSON object with "Events" (Azure), only Preempt and Terminate events are
// notices.
bool is_preemption_notice(int status, std::string_view body);

// Polls once per second, at the same time in all processes on a machine, so that they leave together.
class PreemptionNotice {
 public:
  struct Place {
    std::string host{};  // if empty, `path` is a file
    int port = 0;
    std::string path;
  };
  // `source` is a file path or http://HOST[:PORT]/PATH. Throws UserError if it is anything else.
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

// Returns a token that also requests a departure when there is a preemption notice. The source of notices is
// $OPTIMUS_NOTICE if that is set, otherwise --notice.
StopToken with_preemption_notice(const StopToken& stop, const std::string& option,
                                 const Environment& environment);

}  // namespace optimus
