// StopToken tells long-running work that it has been asked to end. Requests come from signals, a launcher, a
// preemption notice or the store of a run. Each holder polls the token at a point where it can end cleanly. A
// StopToken is cheap to copy. It may be called from any thread if its source may be.
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
  // A token that never requests anything.
  StopToken() = default;
  explicit StopToken(std::function<StopRequest()> poll) : poll_(std::move(poll)) {}

  StopRequest requested() const { return poll_ ? poll_() : StopRequest::none; }
  // Whether a leave or a stop was requested. For work that can end in only one way.
  bool is_requested() const { return requested() != StopRequest::none; }
  bool is_leave_requested() const { return requested() == StopRequest::leave; }

  // Returns a token that turns a leave request into a stop request. For runs that workers cannot leave.
  StopToken with_leave_as_stop() const {
    return StopToken(
        [token = *this] { return token.is_requested() ? StopRequest::stop : StopRequest::none; });
  }
  // Returns a token that combines the requests of this token and of `other`. If both make a request, the one
  // with the higher precedence wins.
  StopToken combined_with(StopToken other) const {
    return StopToken(
        [token = *this, other = std::move(other)] { return std::max(token.requested(), other.requested()); });
  }

 private:
  std::function<StopRequest()> poll_;
};

}  // namespace optimus
