// ProbeScheduler: decides when to pause training for a probe of all machines (adapt/probe_result.h), and what
// to measure.
//
// There are three reasons for a probe. The time of a ring does not show which of its nodes is slow. Devices
// that the plan does not use, or whose slowness it masks, may have recovered. Steps do not show the speed of
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
  // `sees_networks`: probes use the same network as training, which is the case if ranks communicate
  // through host memory.
  explicit ProbeScheduler(bool sees_networks) : sees_networks_(sees_networks) {}

  // Called for each observation, before any request. `has_ambiguous_link`: a slow link may be on one of
  // several nodes.
  void observe(bool has_ambiguous_link);
  // Requests have no effect while a probe is requested or running, or if a probe would show nothing.
  void request_for_ambiguous_link(double now);
  void request_for_unseen(const UnseenFindings& unseen, double interval, double now);
  void request_for_channels(const Calibration& calibration);

  bool is_idle() const { return state_ == State::idle; }
  bool take_request();  // whether all ranks should probe now; true once for each request
  const ProbeRequest& request() const { return request_; }
  // Called when the probe has ended. Returns its request; empty if the request has been dropped meanwhile.
  std::optional<ProbeRequest> complete(const ProbeResult& result);
  void retry_channels() { has_probed_channels_ = false; }
  // Called when the plan has changed: drops the request and the measurements of networks.
  void reset();

  // [node]: slowdown of its network, measured by the last probe for an ambiguous link. Empty if there was
  // no such probe, or it measured too few nodes.
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
