// Condition: something that slows a training run down: its cause, its location and its severity. Scenarios
// consist of conditions, detectors find them, and the cost model applies them to a cluster. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/hardware.h"

namespace optimus {

enum class Cause {
  device,          // a slow device; where: its number
  link,            // a node with a slow network; where: the node
  host,            // a node whose devices are all slow; where: the node
  cluster,         // all devices are slow; no location
  data_loading,    // ranks wait for their samples; where: the ranks; no location: all
  heavy_stage,     // a stage with too much work; where: its number, counted through all pipelines
  uneven_lengths,  // samples of different ranks differ in cost, in each step at other ranks
  memory,          // memory grows towards the limit; where: the stage
};
std::string text(Cause cause);                                                // "slow device"
Cause parse_cause(const std::string& word, const std::string& setting_name);  // "device"; throws UserError
std::string word_of(Cause cause);
// Whether another plan can reduce its effect.
inline bool is_answerable(Cause cause) {
  return cause == Cause::device || cause == Cause::host || cause == Cause::link ||
         cause == Cause::heavy_stage;
}

struct Condition {
  Cause cause = Cause::device;
  int location = 0;
  double factor = 1;  // time with the condition relative to time without; data_loading: of the whole step
  bool operator==(const Condition&) const = default;
};

// The machines under these conditions: slower devices, and a lower network bandwidth of slow nodes. Causes
// that do not concern machines are ignored. A node with a slow network becomes a node group of its own; if it
// shares a fast domain with other nodes, the whole group becomes slower instead. Factors of the same location
// multiply. Throws UserError for a location that does not exist.
HardwareProfile with_conditions(HardwareProfile profile, const std::vector<Condition>& conditions);

}  // namespace optimus
