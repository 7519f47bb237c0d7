// SimulatedRun: simulated per-rank observations of training steps, for tests of detectors and for evaluating
// policies.
//
// Times of compute, updates and collectives come from the cost model; conditions change them accordingly.
// Noise is added to every value of every rank. Its form and parameters were measured
// (docs/results/adaptation.md): log-normal, correlated between steps, with rare steps that take several times
// as long. Alternatively a recorded series is replayed, each rank from another offset. Deterministic for a
// given seed. Pure; not thread-safe.
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
  double memory = 0.65;         // correlation with the previous step
  double rank_spread = 0.01;    // permanent differences between ranks
  double common_spread = 0.01;  // common to all ranks in a step
  double link_spread = 0.05;
  double spike_chance = 0.002;     // probability per step that a rank becomes much slower
  double spike_size = 0.7;         // mean of the exponentially distributed log factor
  double spike_steps = 1;          // mean number of additional slow steps
  std::vector<double> recorded{};  // ratios to replay instead of the above; empty: none
  double recorded_seconds = 0;     // step time of the recording; all times are scaled to it
};

class SimulatedRun {
 public:
  // The plan must be valid for the model, and its devices must exist in the profile. Copies its arguments.
  SimulatedRun(const Plan& plan, const ModelSpec& model, const HardwareProfile& profile, Noise noise,
               std::uint64_t seed);

  // Takes effect from the next step on.
  void set(const std::vector<Condition>& conditions);
  Observation next();

  const Topology& topology() const { return topology_; }
  double step_seconds() const { return step_seconds_; }  // simulated, without noise
  // The current time of a rank's channel relative to its time without conditions.
  double link_slowdown(int rank, Channel channel) const;

 private:
  struct RankTimes {
    double compute = 0, optimizer = 0, host = 0;
    std::array<LinkTime, kChannels> links{};
  };
  struct RankNoise {
    double level = 0, offset = 0, spike = 0;
    int spike_left = 0;
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
  std::vector<RankTimes> healthy_, current_;
  std::vector<StageWork> stage_work_;
  std::vector<RankNoise> ranks_;
  double step_seconds_ = 0, common_ = 0, scale_ = 1;
  std::int64_t step_ = 0;
};

}  // namespace optimus
