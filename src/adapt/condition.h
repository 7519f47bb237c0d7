// Condition: something that slows a training down, as plain data: what, where, how much. Scenarios are made of them, detectors find
// them, and a cluster with them is the cluster as it is now.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/hardware.h"

namespace optimus {

enum class Cause {
  device,          // one is slow; where: its number
  link,            // a node's network is; where: the node
  host,            // all devices of a node are
  cluster,         // everything is; nowhere in particular
  data_loading,    // ranks wait for their samples; where: ranks, or nowhere
  heavy_stage,     // a stage has too much to do; where: its number, counted through all pipelines
  uneven_lengths,  // samples of ranks cost differently, from step to step others
  memory,          // grows towards the limit; where: the stage
};
std::string text(Cause cause);                                        // "slow device"
Cause parse_cause(const std::string& word, const std::string& what);  // "device"; throws UserError
std::string word_of(Cause cause);
// Whether another plan can do something about it.
inline bool is_answerable(Cause cause) {
  return cause == Cause::device || cause == Cause::host || cause == Cause::link ||
         cause == Cause::heavy_stage;
}

struct Condition {
  Cause cause = Cause::device;
  int where = 0;
  double factor = 1;  // times as long; data_loading: of the step
  bool operator==(const Condition&) const = default;
};

// The machines with these conditions, as far as they concern machines: devices at a part of their speed, a node's network with a part
// of its bandwidth (the group of nodes is cut there; a node that shares its fast domain with others keeps its group, and all of
// these are slowed). Conditions of one place multiply. Throws UserError for a place that there is not.
HardwareProfile with_conditions(HardwareProfile profile, const std::vector<Condition>& conditions);

}  // namespace optimus
