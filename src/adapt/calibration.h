// Calibration: measured over predicted time of this run's computing and links when no condition is in force.
//
// It predicts the times of another plan's ranks before their first step. So a condition that existed before a
// change of plan is still found after it, and its end is found too. It also adjusts the cost model's cluster
// to this run. Computing has one factor for each kind of block, with its uncertainty. Links have one for each
// channel within a node, and one for each channel between nodes. Pure; one thread at a time.
#pragma once

#include <array>
#include <initializer_list>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "adapt/detect.h"
#include "adapt/observation.h"
#include "adapt/probe_result.h"
#include "cluster/hardware.h"
#include "cost/constants.h"
#include "model/spec.h"

namespace optimus {

// Predictions of the cost model for one rank of a stage: seconds of computing in a step by kind of block, and
// seconds per byte of the largest message or collective of each channel; 0: the rank does not use the
// channel.
struct StageWork {
  std::array<double, kBlockRoles> compute{};
  std::array<double, kChannels> links{};
};
// [group]: stages counted through all pipelines. Empty for custom models, which the cost model does not know.
std::vector<StageWork> stage_work(const Plan& plan, const ModelSpec& model, const Cluster& cluster);

// Measured over predicted time of embedding, layers and head, relative to the ratio of the layers: the cost
// model has a different error for each kind of block.
using RoleRates = std::array<double, kBlockRoles>;
Constants with_rates(Constants constants, const RoleRates& rates);

class Calibration {
 public:
  // From a step without findings. work and topology: of the plan.
  void learn(const Observation& quiet, const std::vector<StageWork>& stage_work, const Topology& topology);
  // From a probe without findings: messages and collectives between nodes, for plans whose channels no step
  // has used.
  void learn(const ProbeResult& quiet, const Cluster& cluster);
  bool is_known() const { return num_learned_ >= kWarmUp; }

  // Expected times of the ranks of each group (Measure::compute, and channels that were measured before): the
  // initial baselines of a Detector.
  std::map<std::pair<int, Measure>, double> baselines(const std::vector<StageWork>& stage_work,
                                                      const Topology& topology) const;
  // The machines with their measured speeds: devices at the rate of layers, links inside nodes at the rate of
  // the fastest channel, networks so that messages take their measured time.
  HardwareProfile refreshed(HardwareProfile profile) const;
  // Measured time of collectives between nodes over the prediction for refreshed() machines; 1 if it is not
  // known.
  double ring_factor(const HardwareProfile& profile) const;
  // What neither a step nor a probe has measured.
  ProbeRequest missing() const { return {.messages = !messages(), .ring = !rings()}; }
  // Measured over predicted seconds; empty before the first measurement. doubt: the standard deviation of its
  // logarithm over steps.
  std::optional<double> rate(BlockRole role) const;
  double uncertainty(BlockRole role) const;

 private:
  static constexpr int kWarmUp = 8;  // steps
  struct Mean {
    double log = 0, square = 0;
    int count = 0;
    void add(double value);
    double value() const;
  };
  // Between nodes: measured over predicted time.
  std::optional<double> messages() const {
    return fastest({Channel::next, Channel::previous}, probed_messages_);
  }
  std::optional<double> rings() const { return fastest({Channel::tensor, Channel::data}, probed_rings_); }
  std::optional<double> fastest(std::initializer_list<Channel> channels, std::optional<double> probed) const;

  std::array<Mean, kBlockRoles> rates_;
  std::array<std::array<Mean, 2>, kChannels> links_;  // [between nodes]
  std::optional<double> probed_messages_, probed_rings_;
  int num_learned_ = 0;
};

}  // namespace optimus
