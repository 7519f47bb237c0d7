// ImaginedRun: what ranks would see of steps that nobody ran, for tests of detectors and for policies that are tried in simulation.
//
// Seconds of compute, updates and collectives are the cost model's for the plan; conditions change them as they would; noise is put
// on every figure of every rank. Its form and numbers were measured (docs/dynamic-results.md): log-normal, remembered from step to step, with
// rare steps that take several times as long. Or a recorded series is replayed, each rank from another place.
// Deterministic in its seed. Pure; one thread at a time.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "adapt/calibration.h"
#include "adapt/condition.h"
#include "adapt/detect.h"
#include "base/random.h"
#include "cost/constants.h"
#include "model/spec.h"

namespace optimus {

struct Noise {
  double spread = 0.03;         // of the logarithm of a rank's seconds
  double memory = 0.65;         // correlation with the step before
  double rank_spread = 0.01;    // ranks differ for good
  double common_spread = 0.01;  // what all have alike in a step
  double link_spread = 0.05;
  double spike_chance = 0.002;     // of a step to take much longer,
  double spike_size = 0.7;         // times e to an exponential of this mean,
  double spike_steps = 1;          // for so many steps more, on average
  std::vector<double> recorded{};  // ratios, replayed in place of all that where there are any,
  double recorded_seconds = 0;     // of steps of this length: all seconds are scaled to it
};

class ImaginedRun {
 public:
  // The plan must be valid for the model and name devices of the profile. Copies what it needs.
  ImaginedRun(const Plan& plan, const ModelSpec& model, const HardwareProfile& profile, Noise noise,
              std::uint64_t seed);

  // From the next step on.
  void set(const std::vector<Condition>& conditions);
  Observation next();

  const Topology& topology() const { return topology_; }
  double step_seconds() const { return step_seconds_; }  // without noise, as the simulator has it
  // What a channel of this rank takes now, of what it took without conditions.
  double link_slowdown(int rank, Channel channel) const;

 private:
  struct RankTimes {
    double compute = 0, optimizer = 0, host = 0;
    std::array<LinkTime, kChannels> links{};
  };
  struct RankNoise {
    double level = 0, offset = 0, spike = 0;
    int spike_left = 0;
    std::size_t place = 0;
  };
  std::vector<RankTimes> times_of(const Cluster& cluster) const;
  double uniform();
  double normal();
  double noise_of(RankNoise& rank);

  Plan plan_;
  ModelSpec model_;
  HardwareProfile profile_;
  Noise noise_;
  Topology topology_;
  RandomKey key_;
  std::uint64_t drawn_ = 0;
  std::vector<Condition> conditions_;
  std::vector<RankTimes> healthy_, now_;
  std::vector<StageWork> work_;
  std::vector<RankNoise> ranks_;
  double step_seconds_ = 0, common_ = 0, scale_ = 1;
  std::int64_t step_ = 0;
};

}  // namespace optimus
