// SimulatedRun: simulates the observations of all ranks in each training step. Used to test detectors and to
// evaluate policies.
//
// The times of computation, optimizer updates and collectives come from the cost model under the current
// conditions. Noise is added to the times of every rank. As in measurements (docs/results/adaptation.md), it
// is log-normal and correlated between steps, and rare steps take several times as long. Alternatively,
// recorded ratios are replayed, starting at a different offset for each rank. Deterministic for a given seed.
// Pure; not thread-safe.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "adapt/calibration.h"
#include "adapt/detect.h"
#include "base/random.h"
#include "cost/constants.h"
#include "model/spec.h"
#include "policy/condition.h"

namespace optimus {

struct Noise {
  double spread = 0.03;         // standard deviation of the logarithm of a rank's times
  double memory = 0.65;         // correlation with the noise of the previous step
  double rank_spread = 0.01;    // standard deviation of permanent differences between ranks
  double common_spread = 0.01;  // standard deviation of the noise that all ranks share in a step
  double link_spread = 0.05;
  double spike_chance = 0.002;     // probability per step that a rank becomes much slower for a while
  double spike_size = 0.7;         // mean of the exponentially distributed logarithm of the slowdown
  double spike_steps = 1;          // mean number of further slow steps
  std::vector<double> recorded{};  // ratios to replay instead of random noise; empty: none
  double recorded_seconds = 0;     // step time of the recording, to which all times are scaled; 0: no scaling
};

class SimulatedRun {
 public:
  // The plan must be valid for the model, and its devices must exist in the profile. Copies its arguments.
  SimulatedRun(const Plan& plan, const ModelSpec& model, const HardwareProfile& profile, Noise noise,
               std::uint64_t seed);

  // Sets the conditions, starting with the next step.
  void set(const std::vector<Condition>& conditions);
  Observation next();

  const Topology& topology() const { return topology_; }
  // Predicted seconds per step, without noise.
  double step_seconds() const { return step_seconds_; }
  // The current time of a rank's channel divided by its time without conditions.
  double link_slowdown(int rank, Channel channel) const;

 private:
  struct RankTimes {
    double compute = 0, optimizer = 0, host = 0;
    std::array<LinkTime, kChannels> links{};
  };
  struct RankNoise {
    double level = 0, offset = 0, spike = 0;
    int remaining_spike_steps = 0;
    std::size_t rank_offset = 0;
  };
  std::vector<RankTimes> rank_times(const Cluster& cluster) const;
  double uniform();
  double normal();
  double noise_of(RankNoise& rank);

  Plan plan_;
  ModelSpec model_;
  HardwareProfile profile_;
  Noise noise_;
  Topology topology_;
  RandomKey key_;
  std::uint64_t num_drawn_ = 0;
  std::vector<Condition> conditions_;
  std::vector<RankTimes> usual_times_, current_times_;
  std::vector<StageWork> stage_work_;
  std::vector<RankNoise> rank_noise_;
  double step_seconds_ = 0, common_noise_ = 0, scale_ = 1;
  std::int64_t step_ = 0;
};

}  // namespace optimus
