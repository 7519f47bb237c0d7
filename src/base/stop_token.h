// StopToken informs long-running work of requests to end. Signals, a launcher, a preemption
// notice and the store of a run are the sources; each holder polls the token at a point where it can end
// cleanly. Cheap to copy. Callable from any thread if its source is.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>

namespace optimus {

// In ascending order of precedence.
enum class StopRequest {
  none,
  leave,  // this worker leaves the run; the others continue
  stop,   // the run ends, after a checkpoint
};

class StopToken {
 public:
  // A token that is never requested.
  StopToken() = default;
  explicit StopToken(std::function<StopRequest()> poll) : poll_(std::move(poll)) {}

  StopRequest requested() const { return poll_ ? poll_() : StopRequest::none; }
  // Whether either request was made: for work that can end in only one way.
  bool is_requested() const { return requested() != StopRequest::none; }
  bool is_leave_requested() const { return requested() == StopRequest::leave; }

  // For runs that workers cannot leave: a request to leave ends the run.
  StopToken with_leave_as_stop() const {
    return StopToken(
        [token = *this] { return token.is_requested() ? StopRequest::stop : StopRequest::none; });
  }
  // A token that is requested when this one or `other` is; of two requests, the one with precedence.
  StopToken combined_with(StopToken other) const {
    return StopToken(
        [token = *this, other = std::move(other)] { return std::max(token.requested(), other.requested()); });
  }

 private:
  std::function<StopRequest()> poll_;
};

}  // namespace optimus
