// Calibration: the ratio of measured to predicted time, for the computation and the links of this run,
// measured while no condition is active.
//
// It predicts the times of each rank under a new plan before the first step. So a condition that existed
// before a plan change is still detected afterwards, and so is its end. It also adjusts the cost model's
// cluster to this run. There is one ratio with an uncertainty for the computation of each kind of block, and
// there are two ratios for each channel, within a node and between nodes. Pure; one thread at a time.
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

// Predictions of the cost model for one rank of a stage. `compute` has the seconds of computation per step
// for each kind of block. `links` has the seconds per byte of the largest message or collective on each
// channel, or 0 if the rank does not use the channel.
struct StageWork {
  std::array<double, kBlockRoles> compute{};
  std::array<double, kChannels> links{};
};
// Returns one entry per group. A group is a stage; the stages of all pipelines are numbered consecutively.
// Returns an empty vector for custom models, which the cost model does not support.
std::vector<StageWork> stage_work(const Plan& plan, const ModelSpec& model, const Cluster& cluster);

// The ratios of measured to predicted time for embedding, layers and head, each divided by the ratio of the
// layers. The error of the cost model differs between these kinds of blocks.
using BlockTimeRatios = std::array<double, kBlockRoles>;
Constants with_rates(Constants constants, const BlockTimeRatios& rates);

class Calibration {
 public:
  // Learns from a step without findings. `stage_work` and `topology` must belong to the current plan.
  void learn(const Observation& undisturbed, const std::vector<StageWork>& stage_work,
             const Topology& topology);
  // Learns the speed of messages and collectives between nodes from a probe without findings. This is needed
  // for plans that use channels which no step has used yet.
  void learn(const ProbeResult& undisturbed, const Cluster& cluster);
  bool is_known() const { return num_learned_ >= kWarmUp; }

  // Returns the expected times of the ranks of each group, by (group, measure), as initial baselines of a
  // Detector. Contains Measure::compute and all channels that have been measured.
  std::map<std::pair<int, Measure>, double> baselines(const std::vector<StageWork>& stage_work,
                                                      const Topology& topology) const;
  // Returns `profile` with measured speeds. Devices are scaled by the ratio of the layers, links inside nodes
  // by the ratio of the fastest channel, and networks so that messages take their measured time.
  HardwareProfile refreshed(HardwareProfile profile) const;
  // The ratio of measured to predicted time of collectives between nodes, or 1 if unknown. The prediction
  // uses the profile that refreshed() returns.
  double ring_factor(const HardwareProfile& profile) const;
  // Returns a request for a probe of everything that has not been measured by a step or a probe yet.
  ProbeRequest missing_measurements() const { return {.messages = !message_ratio(), .ring = !ring_ratio()}; }
  // rate() is the ratio of measured to predicted seconds, or nullopt before the first measurement.
  // uncertainty() is the standard deviation of its logarithm over steps.
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
  // The ratio of measured to predicted time of messages and of collectives between nodes.
  std::optional<double> message_ratio() const {
    return fastest_ratio({Channel::next, Channel::previous}, probed_messages_);
  }
  std::optional<double> ring_ratio() const {
    return fastest_ratio({Channel::tensor, Channel::data}, probed_rings_);
  }
  std::optional<double> fastest_ratio(std::initializer_list<Channel> channels,
                                      std::optional<double> probed) const;

  std::array<Mean, kBlockRoles> rates_;
  std::array<std::array<Mean, 2>, kChannels> links_;  // [channel][1 if between nodes]
  std::optional<double> probed_messages_, probed_rings_;
  int num_learned_ = 0;
};

}  // namespace optimus
