// ProbeScheduler: decides when to pause training for a probe of all machines (adapt/probe_result.h), and what
// the probe measures.
//
// There are three reasons for a probe: to find out which node of a slow ring has the slow network, to check
// whether devices that the plan does not use (or whose slowness it masks) have recovered, and to measure
// channels that only other plans would use. At most one probe is requested or running at a time. Pure; one
// thread at a time.
#pragma once

#include <optional>
#include <vector>

#include "adapt/calibration.h"
#include "adapt/probe_result.h"
#include "adapt/unseen_findings.h"

namespace optimus {

class ProbeScheduler {
 public:
  // `sees_networks` means that probes use the same network as training. This is so if ranks communicate
  // through host memory.
  explicit ProbeScheduler(bool sees_networks) : sees_networks_(sees_networks) {}

  // Must be called for each observation, before any request. `has_ambiguous_link` means that a slow network
  // may be on one of several nodes.
  void observe(bool has_ambiguous_link);
  // Requests have no effect while a probe is requested or running, or if a probe could not provide the
  // information.
  void request_for_ambiguous_link(double now);
  void request_for_unseen(const UnseenFindings& unseen, double interval, double now);
  void request_for_channels(const Calibration& calibration);

  bool is_idle() const { return state_ == State::idle; }
  bool take_request();  // whether all ranks should probe now; true once for each request
  const ProbeRequest& request() const { return request_; }
  // Called when the probe has completed. Returns its request, or nullopt if the request was dropped in the
  // meantime.
  std::optional<ProbeRequest> complete(const ProbeResult& result);
  void retry_channels() { has_probed_channels_ = false; }
  // Called when the plan has changed. Drops the request and the network measurements.
  void reset();

  // [node]: the slowdown of its network, measured by the last probe for an ambiguous link. Empty if there was
  // no such probe, or if it measured too few nodes.
  std::vector<double> network_slowdowns() const;
  bool sees_networks() const { return sees_networks_; }

 private:
  enum class State { idle, requested, running };
  struct Networks {
    std::vector<double> slowdowns{};
    double next_time = 0;  // time of the controller's clock from which another probe is due
    double wait = 0;       // seconds between the last two requests
    int num_clear = 0;     // observations since a link was last ambiguous
  };
  void set_request(const ProbeRequest& request);

  const bool sees_networks_;
  State state_ = State::idle;
  ProbeRequest request_;  // the probe that is requested or running
  int num_waited_ = 0;    // observations since it was requested
  std::optional<Networks> networks_;
  std::optional<double> last_for_unseen_;  // time of the controller's clock
  bool has_probed_channels_ = false;
};

}  // namespace optimus
