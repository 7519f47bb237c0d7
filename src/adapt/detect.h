// Detector: finds the causes of slow steps from observations alone (adapt/observation.h), step by step.
//
// A measured value is divided by the earlier value of its group of equal ranks (the *baseline*) and by the
// factor that all ranks have in common in this step. The resulting ratio counts as lasting if it is at
// least 1.15 in all but one of 10 steps, or if its median over 60 steps is at least 1.12; seven steps of at
// least 1.5 are enough, because each of them is expensive. It must also have lasted for one second, or for
// five seconds if the ratios vary a lot. Lasting ratios are then attributed: all devices of a node to the
// host, all ranks of a stage on several nodes to a heavy stage, and slow channels to the nodes that explain
// all of them.
//
//   Detector detector(Topology(plan, cluster, map));
//   for each step: for (const Finding& finding : detector.observe(observation)) …
//
// One detector serves one plan epoch. Memory: proportional to the plan's stages, plus at most 512 tracked
// ranks. One thread at a time.
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
  // If a slow device reports a reduced clock: its clock relative to that of the other devices; else 0.
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
  // Shorter disturbances, such as other work on a machine, do not count as conditions.
  double min_seconds = 1;
  double data_share = 0.05;    // waiting for data counts as a condition from this fraction of a step
  double uneven_factor = 1.1;  // cost of the samples of the most expensive rank, relative to the mean
  double stage_factor = 1.1;   // time of the heaviest stage, relative to the mean
  int memory_horizon = 500;    // memory growth is reported if it would reach the limit within this many steps
  // After a real shift, ratios vary little around the new level. If the interquartile range of the logarithms
  // of the last ratios is more than steady_part of the shift, other work is probably running at times, and
  // the shift must last for unsteady_seconds.
  double steady_part = 0.5, unsteady_seconds = 5;
};

// Number of observations after which a new detector can find a condition.
constexpr int kObservationsToDetect = 14;

// Options of the early detector: it finds only slow devices and hosts, with a factor of at least 1.5 in all
// but one of four steps. It finds them sooner, and it is wrong more often.
constexpr int kEarlySteps = 4;
DetectorOptions early_options();

class Detector {
 public:
  // `baseline_seconds` are baselines by (group, measure) that are known before the first step
  // (adapt/calibration.h). All other baselines are learned from the first steps.
  explicit Detector(Topology topology, DetectorOptions options = {},
                    const std::map<std::pair<int, Measure>, double>& baseline_seconds = {});

  // Returns the findings in force after this step, the worst first. Steps must come in order; some may be
  // missing.
  std::vector<Finding> observe(const Observation& observation);
  const Topology& topology() const { return topology_; }

 private:
  // The ratios of the last steps, the newest last.
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

  // The factors by which all ranks were slower in a step. Channels have no common factor.
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
  // The track of the computing of a slow rank or, if computing is not measured (CUDA), of its clock.
  const Track* slow_track_of(int rank) const;

  void find_slow_ranks(std::vector<Finding>& findings) const;
  std::set<int> slow_ranks() const;
  // Attributes these ranks to one location if all of them are slow, and removes them from `slow`.
  void attribute(Cause cause, int location, std::vector<int> ranks, std::set<int>& slow,
                 std::vector<Finding>& findings) const;
  bool is_explained_by_node(int group, const std::set<int>& slow) const;
  // The devices of a slow host become slow at the same time, but the detector finds them one after the
  // other. If some of them are found, and all other devices of the host show at least half of their shift
  // in most of the last steps, the other devices are added to `slow`.
  void complete_nodes(std::set<int>& slow) const;
  void find_slow_links(std::vector<Finding>& findings) const;
  // The rank that reaches a collective last measures the speed of the channel; the times of all other ranks
  // include waiting. So a link counts as slow only if all of its members measure a slow time.
  bool is_link_slow(Channel channel, int rank) const;
  // A slow device also processes its messages slowly. A channel counts as slow only if its slowdown exceeds
  // the slowdown of its members' own computation.
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
