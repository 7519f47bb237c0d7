// Calibration: how much slower or quicker than the cost model says this run's computing and links are when nothing is wrong with them.
// Learned while all is quiet, it says what another plan's ranks should take before they have taken a step: a condition that was there
// before a change of plan is seen behind it, and so is its end. It also makes the cost model's cluster this run's own.
//
// Of computing one factor for each kind of block, with its uncertainty; of links one for each channel, within a node and between nodes.
// Pure; one thread at a time.
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

// What the cost model says of one rank of a stage: seconds of computing in a step by kind of block, and seconds a byte of the largest
// message or collective of each channel; 0: there is none.
struct StageWork {
  std::array<double, kBlockRoles> compute{};
  std::array<double, kChannels> links{};
};
// [group]: stages counted through all pipelines. Empty for models of modules, which the cost model does not know.
std::vector<StageWork> stage_work(const Plan& plan, const ModelSpec& model, const Cluster& cluster);

// Blocks of different kind err differently: what embedding, layers and head take of what the model says, of the layers' rate.
using RoleRates = std::array<double, kBlockRoles>;
Constants with_rates(Constants constants, const RoleRates& rates);

class Calibration {
 public:
  // Of a step in which nothing was found; the rest is the plan's.
  void learn(const Observation& quiet, const std::vector<StageWork>& work, const Topology& topology);
  // Of a look at all machines when nothing was slow: what messages and collectives between nodes take, for plans whose channels no step has
  // used.
  void learn(const ProbeResult& quiet, const Cluster& cluster);
  bool is_known() const { return num_learned_ >= kWarmUp; }

  // What ranks of each group should take (Measure::compute, and channels that were seen before), as Detector begins with.
  std::map<std::pair<int, Measure>, double> baselines(const std::vector<StageWork>& work,
                                                      const Topology& topology) const;
  // The same machines as the run found them: devices at the rate of layers, links inside nodes at that of the quickest channel, networks so that
  // messages take what they took.
  HardwareProfile refreshed(HardwareProfile profile) const;
  // What collectives between nodes take, of what the cost model says of them on refreshed() machines; 1 where it is not known.
  double ring_factor(const HardwareProfile& profile) const;
  // What no step has shown, and nobody has looked at.
  ProbeRequest missing() const { return {.messages = !messages(), .ring = !rings()}; }
  // Seconds, of those predicted; nothing before it was seen. And the standard deviation of its logarithm from step to step.
  std::optional<double> rate(BlockRole role) const;
  double doubt(BlockRole role) const;

 private:
  static constexpr int kWarmUp = 8;  // steps
  struct Mean {
    double log = 0, square = 0;
    int count = 0;
    void see(double value);
    double value() const;
  };
  // Between nodes, of what the cost model says.
  std::optional<double> messages() const {
    return quickest({Channel::next, Channel::previous}, probed_messages_);
  }
  std::optional<double> rings() const { return quickest({Channel::tensor, Channel::data}, probed_rings_); }
  std::optional<double> quickest(std::initializer_list<Channel> channels, std::optional<double> probed) const;

  std::array<Mean, kBlockRoles> rates_;
  std::array<std::array<Mean, 2>, kChannels> links_;  // [between nodes]
  std::optional<double> probed_messages_, probed_rings_;
  int num_learned_ = 0;
};

}  // namespace optimus
