// Condition: something that slows a training run down, such as a slow device, with its location and severity.
// Scripted scenarios contain conditions, detectors find them, and the cost model applies them to a cluster.
// Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/hardware.h"

namespace optimus {

enum class Cause {
  device,          // a slow device; location: the device
  link,            // a node with a slow network; location: the node
  host,            // a node whose devices are all slow; location: the node
  cluster,         // all devices are slow; no location
  data_loading,    // ranks wait for their samples; location: the rank, or none if all ranks wait
  heavy_stage,     // a stage with too much work; location: its index, counted through all pipelines
  uneven_lengths,  // the cost of samples differs between ranks, on different ranks in each step
  memory,          // memory grows towards the limit; location: the stage
};
std::string text(Cause cause);                                                // "slow device"
Cause parse_cause(const std::string& word, const std::string& setting_name);  // "device"; throws UserError
std::string word_of(Cause cause);
// Whether another plan can reduce the effect of the condition.
inline bool is_mitigable_by_plan(Cause cause) {
  return cause == Cause::device || cause == Cause::host || cause == Cause::link ||
         cause == Cause::heavy_stage;
}

struct Condition {
  Cause cause = Cause::device;
  int location = 0;
  // Time of the affected work with the condition, relative to the time without it. For data_loading, this is
  // the whole step.
  double factor = 1;
  bool operator==(const Condition&) const = default;
};

// Returns the profile of a cluster under these conditions, with slower devices and lower network bandwidths.
// Causes that are not related to hardware are ignored. A node with a slow network becomes a separate node
// group. If it shares a fast domain with other nodes, the network of the whole group is slowed down instead.
// Factors at the same location are multiplied. Throws UserError if a location does not exist.
HardwareProfile with_conditions(HardwareProfile profile, const std::vector<Condition>& conditions);

}  // namespace optimus
