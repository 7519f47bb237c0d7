// Detector: finds the causes of slow steps. Its only input is one observation per step (adapt/observation.h).
//
// Each measured value is divided by the earlier value of its group of equal ranks (the *baseline*) and by the
// slowdown that all ranks have in common in this step. The resulting ratio is lasting if it is at least 1.15
// in all but one of 10 steps, or if its median over 60 steps is at least 1.12. Seven steps with a ratio of at
// least 1.5 also suffice, because such steps are expensive. The ratio must have been high for at least one
// second, or for five seconds if the ratios vary a lot. Lasting ratios are then attributed to causes: to the
// host if all devices of a node are slow, to a heavy stage if all its ranks on several nodes are slow, and to
// the nodes that explain all slow channels.
//
//   Detector detector(Topology(plan, cluster, map));
//   for each step: for (const Finding& finding : detector.observe(observation)) …
//
// A detector is used for one plan epoch. Its memory is proportional to the number of stages, plus at most 512
// tracked ranks. One thread at a time.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "adapt/observation.h"
#include "adapt/topology.h"
#include "policy/condition.h"

namespace optimus {

struct Finding {
  Cause cause = Cause::device;
  std::vector<int> locations;   // as in Condition; for a link, all nodes that measurements cannot tell apart
  double factor = 1;            // median over the last steps
  double spread = 0;            // standard deviation of the factor's logarithm
  std::int64_t begin_step = 0;  // the first slow step, as far as measurements show
  // The device's clock relative to the other devices if it is slow and its clock is reduced; otherwise 0.
  double clock = 0;
};
// For example "slow device 5: 1.52x since step 397", followed by " (clock at 0.66)" if the clock is lower.
std::string text(const Finding& finding);

struct DetectorOptions {
  int warm_up = 12;  // steps from which baselines are computed
  int short_window = 10, long_window = 60;
  double short_factor = 1.15, long_factor = 1.12;
  int strong_window = 7;  // all of these steps must have strong_factor
  double strong_factor = 1.5;
  double link_short_factor = 1.12, link_long_factor = 1.12;
  // Shorter disturbances, such as other jobs on a machine, are not conditions.
  double min_seconds = 1;
  double data_share = 0.05;    // waiting for data counts as a condition from this fraction of a step
  double uneven_factor = 1.1;  // cost of the samples of the most expensive rank, relative to the mean
  double stage_factor = 1.1;   // time of the heaviest stage, relative to the mean
  int memory_horizon = 500;    // memory growth is reported if it would reach the limit within this many steps
  // After a real shift, ratios vary little around the new level. If the interquartile range of the logarithms
  // of recent ratios exceeds the fraction `steady_part` of the shift, other jobs are probably running
  // intermittently. The shift must then last for `unsteady_seconds`.
  double steady_part = 0.5, unsteady_seconds = 5;
};

// Number of observations after which a new detector can find a condition.
constexpr int kObservationsToDetect = 14;

// Options of the early detector. It finds only slow devices and hosts, with a factor of at least 1.5 in all
// but one of four steps. It finds them earlier but is wrong more often.
constexpr int kEarlySteps = 4;
DetectorOptions early_options();

class Detector {
 public:
  // `baseline_seconds` contains the baselines that are known before the first step, by (group, measure)
  // (adapt/calibration.h). All other baselines are learned from the first steps.
  explicit Detector(Topology topology, DetectorOptions options = {},
                    const std::map<std::pair<int, Measure>, double>& baseline_seconds = {});

  // Returns the active findings after this step, the worst first. Observations must arrive in step order, but
  // steps may be missing.
  std::vector<Finding> observe(const Observation& observation);
  const Topology& topology() const { return topology_; }

 private:
  // The ratios of the last steps, in step order.
  struct Track {
    std::deque<double> ratios;
    std::deque<std::int64_t> steps;  // [ratio]: its step
    std::int64_t high_since = 0;     // first step of the present sequence of high ratios
    std::int64_t begin_step = 0;     // first step of a lasting slowdown
    int num_quiet = 0;               // steps since the last high ratio
    bool is_lasting = false;
    double high_seconds = 0;  // how long ratios have been high, not counting isolated steps
  };
  struct Baseline {
    std::vector<double> warm_up_medians;  // the group's median in each step of the warm-up
    double value = 0;                     // 0 if not known yet
  };
  using Key = std::pair<Measure, int>;  // (measure, rank), or (measure, -1 - group) for a whole group

  // The slowdown that all ranks have in common in a step. Channels have no common slowdown.
  struct CommonFactors {
    double compute = 1, clock = 1;
    double of(Measure measure) const {
      return measure == Measure::compute ? compute : measure == Measure::clock ? clock : 1;
    }
  };
  double common_factor(const Observation& observation, Measure measure) const;
  void update_tracks(const Observation& observation, const CommonFactors& common);
  std::map<Key, double> ratios_of(const Observation& observation, const CommonFactors& common) const;
  void update_track(Track& track, double ratio, bool is_link) const;
  bool is_steady(const Track& track, int window) const;
  std::int64_t first_step_of(const Track& track) const;
  void learn(const Observation& observation, const CommonFactors& common);
  bool is_slow(Measure measure, int rank) const;
  Finding finding_of(Cause cause, std::vector<int> locations, const std::vector<const Track*>& tracks) const;
  const Track* track_of(Measure measure, int rank) const;
  // The track of the compute time of a slow rank. If compute times are not measured (CUDA), the track of its
  // clock.
  const Track* slow_track_of(int rank) const;

  void find_slow_ranks(std::vector<Finding>& findings) const;
  std::set<int> slow_ranks() const;
  // If all of these ranks are slow, adds one finding for all of them and removes them from `slow`.
  void attribute(Cause cause, int location, std::vector<int> ranks, std::set<int>& slow,
                 std::vector<Finding>& findings) const;
  bool is_explained_by_node(int group, const std::set<int>& slow) const;
  // The devices of a slow host become slow at the same time, but the detector finds them one after another.
  // If some of them are in `slow`, and the other devices show at least half of their shift in most of the
  // last steps, the other devices are added.
  void complete_nodes(std::set<int>& slow) const;
  void find_slow_links(std::vector<Finding>& findings) const;
  // Only the rank that reaches a collective last measures the speed of the channel, because the times of all
  // other ranks include waiting. So a link is slow only if all of its members measure a slow time.
  bool is_link_slow(Channel channel, int rank) const;
  // A slow device also processes its messages slowly. So a channel is slow only if its slowdown exceeds the
  // slowdown of its members' computation.
  bool is_explained_by_device(const Track& link, Channel channel, int rank) const;
  void find_heavy_stage(const Observation& observation, std::vector<Finding>& findings);
  void find_data_wait(const Observation& observation, std::vector<Finding>& findings);
  void find_uneven_lengths(const Observation& observation, std::vector<Finding>& findings);
  void find_memory_growth(const Observation& observation, std::vector<Finding>& findings);

  Topology topology_;
  DetectorOptions options_;
  std::int64_t step_ = 0, first_step_ = 0;
  double step_seconds_ = 0;
  int num_observations_ = 0;
  std::map<std::pair<int, Measure>, Baseline> baselines_;  // by (group, measure)
  std::map<Key, Track> tracks_;
  Track common_track_;
  std::deque<double> data_shares_, uneven_factors_;
  std::vector<std::deque<double>> stage_shares_, memory_values_;  // [group]
};

}  // namespace optimus
