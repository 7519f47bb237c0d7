// Detectors: what slows this run down, found from observations alone (adapt/observation.h), step by step.
//
// A value is compared with what its group of equal ranks had before (the *baseline*), less what all ranks have in common in this step. A
// ratio counts as lasting when all but one of 10 steps have 1.15 at least, or the median of 60 steps 1.12; and for a second, where steps take
// milliseconds, or for five where the ratios jump about. Seven of 1.5 at least are enough: each step counts then. What is over after six steps passes, and is not found. Who is in force is then put together: all devices of a node are a
// host, all ranks of a stage on several nodes are a heavy stage, of slow channels the nodes that explain all of them.
//
//   Detector detector(Topology(plan, cluster, map));
//   for each step: for (const Finding& finding : detector.observe(observation)) …
//
// One detector serves one plan epoch. Memory: the plan's stages, and at most 512 suspects. One thread at a time.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "adapt/condition.h"
#include "adapt/observation.h"
#include "cluster/device_map.h"
#include "plan/plan.h"

namespace optimus {

struct Finding {
  Cause cause = Cause::device;
  std::vector<int> where;  // as in Condition; of a link all nodes that measurements cannot tell apart
  double factor = 1;       // median over the last steps
  double spread = 0;       // of the factor's logarithm: how sure it is
  std::int64_t since = 0;  // first step of it, as far as can be told
  double clock = 0;        // of a device whose clock is lower, by its own word: of what others have
};
// "slow device 5: 1.52x since step 397"; behind it " (clock at 0.66)"
std::string text(const Finding& finding);

// Who sits where, and who speaks to whom. Ranks are the plan's devices. Copies what it needs.
class Topology {
 public:
  Topology(const Plan& plan, const Cluster& cluster, const DeviceMap& map);

  int num_ranks() const { return static_cast<int>(seats_.size()); }
  int num_nodes() const { return static_cast<int>(ranks_of_node_.size()); }  // with ranks
  int group_of(int rank) const { return seats_[static_cast<std::size_t>(rank)].group; }
  int node_of(int rank) const { return seats_[static_cast<std::size_t>(rank)].node; }
  const std::vector<int>& ranks_of_node(int node) const { return ranks_of_node_.at(node); }
  const std::vector<int>& ranks_of_group(int group) const {
    return ranks_of_group_[static_cast<std::size_t>(group)];
  }
  int num_groups() const { return static_cast<int>(ranks_of_group_.size()); }
  // Ranks that the channel joins with this one, itself too; only itself where it has none.
  std::vector<int> members(int rank, Channel channel) const;
  // Nodes of these.
  std::vector<int> nodes_of(int rank, Channel channel) const;

 private:
  struct RankSeat {
    int group = -1, index = 0, node = 0, pipeline = 0, stage = 0;
  };
  void note_twins(const Plan& plan);
  std::vector<int> holders(const RankSeat& seat) const;

  std::vector<RankSeat> seats_;
  std::map<int, std::vector<int>> ranks_of_node_;
  std::vector<std::vector<int>> ranks_of_group_;
  std::vector<int> inner_;            // [group]: tp * cp of its first layers
  std::vector<int> first_of_, last_;  // [group]: first and last group of its pipeline
  std::vector<std::vector<int>>
      twins_;  // [group]: those that have some of its blocks, itself too; of several pipelines
};

struct DetectorOptions {
  int warm_up = 12;  // steps before anything is compared with before
  int short_window = 10, long_window = 60;
  double short_factor = 1.15, long_factor = 1.12;
  int quick_window = 7;  // all of these, where so much is lost that each step counts
  double quick_factor = 1.5;
  double link_short_factor = 1.12, link_long_factor = 1.12;
  double least_seconds = 1;    // other work on a machine takes milliseconds: no condition
  double data_share = 0.05;    // of the step, waiting for data
  double uneven_factor = 1.1;  // the costliest rank's samples, of the mean
  double stage_factor = 1.1;   // the heaviest stage, of the mean
  int memory_horizon = 500;    // steps until the limit is reached
  // A level that has shifted lies closely around its new place. Where the middle half of the last ratios' logarithms spreads over more
  // than this part of the shift, other work comes and goes; that counts when it lasts longer.
  double steady_part = 0.5, unsteady_seconds = 5;
};

// Observations until a new detector has seen enough to find a condition.
constexpr int kObservationsToDetect = 14;

// The early detector: only slow devices and hosts, with a factor of 1.5 or more in all but one of four steps. It finds them sooner, and it is
// wrong more often.
constexpr int kEarlySteps = 4;
DetectorOptions early_options();

class Detector {
 public:
  // usual: what is known of measures of groups before the first step (adapt/calibration.h); the others are learned.
  explicit Detector(Topology topology, DetectorOptions options = {},
                    const std::map<std::pair<int, Measure>, double>& usual = {});

  // What is in force after this step, the worst first. Steps must come in order; some may be left out.
  std::vector<Finding> observe(const Observation& observation);
  const Topology& topology() const { return topology_; }

 private:
  // Ratios of the last steps, the newest last, and which steps these were.
  struct Track {
    std::deque<double> ratios;
    std::deque<std::int64_t> steps;
    std::int64_t high_since = 0;  // where the current run of high ones began
    std::int64_t since = 0;       // of one that lasts: where it began
    int quiet = 0;                // steps since the last high one
    bool is_lasting = false;
    double high_seconds = 0;  // how long all but single steps have been high
  };
  struct Baseline {
    std::vector<double> first;  // medians of the warm-up
    double value = 0;           // 0: not yet
  };
  using Key = std::pair<Measure, int>;  // rank, or -1 - group for the whole group

  // What ranks have in common in a step: of channels nothing.
  struct Common {
    double compute = 1, clock = 1;
    double of(Measure measure) const {
      return measure == Measure::compute ? compute : measure == Measure::clock ? clock : 1;
    }
  };
  double common_factor(const Observation& observation, Measure measure) const;
  void follow(const Observation& observation, const Common& common);
  void follow_one(Track& track, double ratio, bool is_link) const;
  bool is_steady(const Track& track, int window) const;
  std::int64_t began(const Track& track) const;
  void learn(const Observation& observation, const Common& common);
  bool is_slow(Measure measure, int rank) const;
  Finding finding_of(Cause cause, std::vector<int> where, const std::vector<const Track*>& tracks) const;
  const Track* track_of(Measure measure, int rank) const;
  // Of a slow rank: what it computes takes longer; where nobody sees that (CUDA), its clock is lower.
  const Track* slowness_of(int rank) const;

  void find_slow_ranks(std::vector<Finding>& found) const;
  // Devices of a host become slow together, and count as slow one after the other: where some do, and all others have half of their shift in most
  // of the last steps, these count too.
  void complete_nodes(std::set<int>& slow) const;
  void find_slow_links(std::vector<Finding>& found) const;
  // Whoever comes last to a channel sees its own speed; the others wait for it. A link is slow when all of its members say so.
  bool is_link_slow(Channel channel, int rank) const;
  // A slow device serves its messages slowly, too: what a channel takes is its link's as far as it exceeds what its members' own work does.
  bool is_explained_by_device(const Track& link, Channel channel, int rank) const;
  void find_heavy_stage(const Observation& observation, std::vector<Finding>& found);
  void find_data_wait(const Observation& observation, std::vector<Finding>& found);
  void find_uneven_lengths(const Observation& observation, std::vector<Finding>& found);
  void find_memory_growth(const Observation& observation, std::vector<Finding>& found);

  Topology topology_;
  DetectorOptions options_;
  std::int64_t step_ = 0, first_step_ = 0;
  double step_seconds_ = 0;
  int num_seen_ = 0;
  std::map<std::pair<int, Measure>, Baseline> baselines_;  // by group
  std::map<Key, Track> tracks_;
  Track common_;
  std::deque<double> data_shares_, uneven_;
  std::vector<std::deque<double>> stage_shares_, memory_;  // [group]
};

}  // namespace optimus
