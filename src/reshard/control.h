// Requests to a running training job. A request is a file in the run's folder, and the response is a second
// file. Any process with write permission for the folder may send requests. No network port is opened, and
// requests work on every host that mounts the folder.
//
//   RUN/control/1731766812-4711.request      {"plan": {…}}, or {"plan": "auto"}        optimus switch
//                                            {"drain": 2}                              optimus drain
//   RUN/control/1731766812-4711.taken        the request, while its rank is being drained
//   RUN/control/1731766812-4711.answer       {"done": true, "text": "step 412: plan 7f3a → 91c2 …"}
//
// Request and response are written under a temporary name and then renamed, so that no reader sees an
// incomplete file.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "plan/plan.h"

namespace optimus {

struct SwitchRequest {
  std::string name;          // name of the request file
  std::optional<Plan> plan;  // if empty, the best plan that the planner finds
  std::string why{};         // the reason, shown in messages and records
};
struct DrainRequest {
  std::string name;
  int rank = 0;  // the rank that should leave
};
using ControlRequest = std::variant<SwitchRequest, DrainRequest>;

struct ControlAnswer {
  bool is_done = false;
  std::string text;  // one line: the action, or the reason for rejecting the request
};

// The training side of the control folder, on one rank. Not thread-safe.
class ControlFolder {
 public:
  explicit ControlFolder(Path run);
  // Returns the oldest request that has no response yet, or nullopt if there is none. Responds to invalid
  // requests itself. Reads the folder at most every 50 ms.
  std::optional<ControlRequest> next();
  bool has_waiting_requests() const { return !waiting().empty(); }
  // Errors while writing the response are ignored, because they must not affect the run.
  void write_answer(const std::string& name, const ControlAnswer& answer);
  // Claims the request for this rank, which must then respond to it. No other rank processes the request
  // while this rank is alive. Returns false if the requester has cancelled the request.
  bool claim(const std::string& name);
  // Called when a run starts. Rejects requests that an earlier run claimed but did not respond to.
  void refuse_claimed(const std::string& why);
  // Called after ranks were renumbered. Rejects pending drain requests, because they identify a rank by its
  // old number. If `is_claimer_lost`, also rejects all claimed requests, because the rank that claimed them
  // is lost.
  void refuse_drains(const std::string& why, bool is_claimer_lost);
  // Called when the run ends. Rejects all pending requests.
  void close(const std::string& why);

 private:
  std::vector<std::string> waiting() const;
  std::vector<std::string> claimed_requests() const;

  const Path folder_;
  std::optional<Deadline> next_poll_;
};

// The requester's side: sends a request and waits for the response. Cancels the request and fails if the run
// does not respond before the deadline.
Outcome<ControlAnswer> send_request(const Path& run, const OrderedJson& control_request,
                                    const Deadline& deadline);
// The content of a request file: a switch to this plan (to the best plan if empty), or the drain of a rank.
OrderedJson switch_request_json(const std::optional<Plan>& plan, const std::string& why = "requested");
OrderedJson drain_request_json(int rank);

}  // namespace optimus
