// Implements condition.h.
#include "policy/condition.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

struct CauseWords {
  const char *word, *description;
};
constexpr std::array<CauseWords, 8> kCauses = {{{"device", "slow device"},
                                                {"link", "slow network of node"},
                                                {"host", "slow node"},
                                                {"cluster", "everything slow"},
                                                {"data_loading", "waiting for data"},
                                                {"heavy_stage", "too heavy stage"},
                                                {"uneven_lengths", "uneven lengths"},
                                                {"memory", "growing memory of stage"}}};

// The location of a node in the cluster: its node group, its index in that group, and its devices.
struct NodePlace {
  std::size_t group = 0;
  int node = 0, first_device = 0, devices = 0;
};

NodePlace place_of_node(const HardwareProfile& profile, int node) {
  int first_node = 0, first_device = 0;
  for (std::size_t g = 0; g < profile.groups.size(); ++g) {
    const NodeGroup& group = profile.groups[g];
    if (node >= first_node && node < first_node + group.num_nodes()) {
      const int node_in_group = node - first_node, devices_before = node_in_group * group.devices_per_node;
      return {g, node_in_group, first_device + devices_before,
              std::min(group.devices_per_node, group.num_devices - devices_before)};
    }
    first_node += group.num_nodes(), first_device += group.num_devices;
  }
  throw UserError("{}: node {} does not exist; the cluster has {} nodes", profile.name, node, first_node);
}

// Splits the node's group into up to three groups, one of which contains only this node. Returns the index of
// that group. If the original group cannot be split or contains only this node, it stays unchanged and its
// index is returned.
std::size_t isolate_node(HardwareProfile& profile, const NodePlace& node_place) {
  const NodeGroup full_group = profile.groups[node_place.group];
  if (full_group.devices_per_domain > full_group.devices_per_node || full_group.num_nodes() == 1)
    return node_place.group;
  const int num_before = node_place.node * full_group.devices_per_node,
            num_after = full_group.num_devices - num_before - node_place.devices;
  std::vector<NodeGroup> parts;
  for (const int devices : {num_before, node_place.devices, num_after}) {
    if (devices == 0) continue;
    parts.push_back(full_group);
    parts.back().num_devices = devices;
  }
  const auto place = profile.groups.begin() + static_cast<std::ptrdiff_t>(node_place.group);
  profile.groups.insert(profile.groups.erase(place), parts.begin(), parts.end());
  return node_place.group + (num_before > 0 ? 1 : 0);
}

}  // namespace

std::string text(Cause cause) { return kCauses[static_cast<std::size_t>(cause)].description; }
std::string word_of(Cause cause) { return kCauses[static_cast<std::size_t>(cause)].word; }

Cause parse_cause(const std::string& word, const std::string& setting_name) {
  std::string known_words;
  for (std::size_t i = 0; i < kCauses.size(); ++i) {
    if (word == kCauses[i].word) return static_cast<Cause>(i);
    known_words += (i > 0 ? ", " : "") + std::string(kCauses[i].word);
  }
  throw UserError("{}: {} is not one of {}", setting_name, in_quotes(word), known_words);
}

HardwareProfile with_conditions(HardwareProfile profile, const std::vector<Condition>& conditions) {
  std::map<int, double> speeds;
  int num_devices = 0;
  for (const NodeGroup& group : profile.groups) num_devices += group.num_devices;
  for (const SpeedFactor& factor : profile.speed_factors) speeds[factor.device] = factor.factor;
  const auto slow_down = [&](int device, double factor) {
    speeds[device] = (speeds.contains(device) ? speeds[device] : 1) / factor;
  };
  for (const Condition& condition : conditions) {
    if (condition.cause == Cause::device) {
      if (condition.location < 0 || condition.location >= num_devices)
        throw UserError("{}: device {} does not exist; the cluster has {} devices", profile.name,
                        condition.location, num_devices);
      slow_down(condition.location, condition.factor);
    } else if (condition.cause == Cause::host) {
      const NodePlace place = place_of_node(profile, condition.location);
      for (int device = place.first_device; device < place.first_device + place.devices; ++device)
        slow_down(device, condition.factor);
    } else if (condition.cause == Cause::cluster) {
      for (int device = 0; device < num_devices; ++device) slow_down(device, condition.factor);
    } else if (condition.cause == Cause::link) {
      const std::size_t group = isolate_node(profile, place_of_node(profile, condition.location));
      profile.groups[group].network.nic.bytes_per_second /= condition.factor;
    }
  }
  profile.speed_factors.clear();
  for (const auto& [device, factor] : speeds)
    if (factor != 1) profile.speed_factors.push_back({device, factor});
  return profile;
}

}  // namespace optimus
