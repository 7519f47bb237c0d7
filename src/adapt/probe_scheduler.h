// ProbeScheduler: when to pause training for a probe of all machines (adapt/probe_result.h), and what to
// measure.
//
// There are three reasons: the time of a ring does not show which of its nodes is slow; devices that the plan
// does not use, or masks, may have recovered; steps do not show how fast channels are that other plans would
// use. At most one probe is wanted or under way. Pure; one thread at a time.
#pragma once

#include <optional>
#include <vector>

#include "adapt/calibration.h"
#include "adapt/probe_result.h"
#include "adapt/unseen_findings.h"

namespace optimus {

class ProbeScheduler {
 public:
  // sees_networks: probes use the same network as training, which holds for ranks that communicate through
  // host memory.
  explicit ProbeScheduler(bool sees_networks) : sees_networks_(sees_networks) {}

  // With each observation, before any request. has_ambiguous_link: a slow link may be on one of several
  // nodes.
  void observe(bool has_ambiguous_link);
  // Requests do nothing while a probe is wanted or under way, or where it would show nothing.
  void request_for_ambiguous_link(double now);
  void request_for_unseen(const UnseenFindings& unseen, double interval, double now);
  void request_for_channels(const Calibration& calibration);

  bool is_idle() const { return state_ == State::idle; }
  bool take_request();  // whether all ranks shall probe now; true once for each request
  const ProbeRequest& request() const { return request_; }
  // The probe has ended. Returns the request; empty if there was none any more.
  std::optional<ProbeRequest> complete(const ProbeResult& result);
  void retry_channels() { has_probed_channels_ = false; }
  // The plan has changed: drops requests and measurements of networks.
  void reset();

  // [node]: slowdown of its network by the last probe for an ambiguous link. Empty if there was none, or it
  // showed too few nodes.
  std::vector<double> network_slowdowns() const;
  bool sees_networks() const { return sees_networks_; }

 private:
  enum class State { idle, wanted, under_way };
  struct Networks {
    std::vector<double> slowdowns{};
    double next_time = 0,
           wait = 0;    // time of the controller's clock from which another probe is due; seconds
    int num_clear = 0;  // observations since a link was ambiguous
  };
  void set_request(const ProbeRequest& request);

  const bool sees_networks_;
  State state_ = State::idle;
  ProbeRequest request_;  // that is wanted or under way
  int num_waited_ = 0;    // observations since it was requested
  std::optional<Networks> networks_;
  std::optional<double> last_for_unseen_;  // time of the controller's clock
  bool has_probed_channels_ = false;
};

}  // namespace optimus
