// Implements probe_scheduler.h.
#include "adapt/probe_scheduler.h"

#include <algorithm>
#include <utility>

namespace optimus {

void ProbeScheduler::observe(bool has_ambiguous_link) {
  constexpr int kMaxObservations = 10;  // the probe is abandoned after this number of observations
  num_waited_ = is_idle() ? 0 : num_waited_ + 1;
  if (num_waited_ > kMaxObservations) state_ = State::idle;
  if (!networks_) return;
  networks_->num_clear = has_ambiguous_link ? 0 : networks_->num_clear + 1;
  if (networks_->num_clear > kObservationsToDetect) networks_.reset();
}

void ProbeScheduler::request_for_ambiguous_link(double now) {
  constexpr double kMinWait = 30, kMaxWait = 600;  // seconds between two probes
  if (!sees_networks_ || !is_idle()) return;
  if (networks_ && now < networks_->next_time) return;
  if (!networks_) networks_ = Networks{};
  networks_->wait = std::clamp(2 * networks_->wait, kMinWait, kMaxWait);
  networks_->next_time = now + networks_->wait;
  set_request({.speeds = true});
}

// A probe is short, so its result may be wrong. In lab tests, one of 28 probes measured normal speed for a
// host that ran at half its speed. So a second probe must confirm a recovery.
void ProbeScheduler::request_for_unseen(const UnseenFindings& unseen, double interval, double now) {
  constexpr double kConfirmedAfter = 1;  // seconds
  if (!is_idle() || !unseen.can_be_probed(sees_networks_)) return;
  if (!last_for_unseen_) last_for_unseen_ = now;
  if (now - *last_for_unseen_ < (unseen.needs_confirmation() ? kConfirmedAfter : interval)) return;
  last_for_unseen_ = now;
  set_request({.speeds = true});
}

// Requests this probe only once and as early as possible, so that no decision has to wait for it.
void ProbeScheduler::request_for_channels(const Calibration& calibration) {
  const ProbeRequest missing = calibration.missing_measurements();
  if (has_probed_channels_ || !sees_networks_ || missing == ProbeRequest()) return;
  if (!calibration.is_known() || !is_idle()) return;
  has_probed_channels_ = true;
  set_request(missing);
}

void ProbeScheduler::set_request(const ProbeRequest& request) {
  request_ = request, state_ = State::requested;
}

bool ProbeScheduler::take_request() {
  if (state_ != State::requested) return false;
  state_ = State::running;
  return true;
}

std::optional<ProbeRequest> ProbeScheduler::complete(const ProbeResult& result) {
  if (std::exchange(state_, State::idle) == State::idle) return std::nullopt;
  if (request_.speeds && networks_) networks_->slowdowns = slowdowns(result.network);
  return request_;
}

void ProbeScheduler::reset() {
  if (!is_idle()) has_probed_channels_ = false;
  networks_.reset(), state_ = State::idle, last_for_unseen_.reset();
}

std::vector<double> ProbeScheduler::network_slowdowns() const {
  return networks_ ? networks_->slowdowns : std::vector<double>();
}

}  // namespace optimus
