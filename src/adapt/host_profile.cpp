// Implements host_profile.h: groups equal adjacent hosts.
#include "adapt/host_profile.h"

#include <algorithm>
#include <utility>

namespace optimus {

HardwareProfile profile_of(const HardwareProfile& one_node, const std::vector<std::string>& hosts) {
  std::vector<std::pair<std::string, int>> nodes;
  for (const std::string& host : hosts)
    if (nodes.empty() || nodes.back().first != host)
      nodes.emplace_back(host, 1);
    else
      ++nodes.back().second;
  HardwareProfile profile = one_node;
  NodeGroup group = profile.groups.front();
  group.num_devices = group.devices_per_node = group.devices_per_domain = static_cast<int>(hosts.size());
  std::vector<std::string> names;
  for (const auto& [name, count] : nodes) names.push_back(name);
  std::sort(names.begin(), names.end());
  const bool is_interleaved = std::adjacent_find(names.begin(), names.end()) != names.end();
  profile.groups = {group};
  if (is_interleaved || nodes.size() == 1) return profile;
  profile.groups.clear();
  for (const auto& [name, count] : nodes) {
    if (!profile.groups.empty() && profile.groups.back().devices_per_node == count) {
      profile.groups.back().num_devices += count;
      continue;
    }
    group.num_devices = group.devices_per_node = group.devices_per_domain = count;
    profile.groups.push_back(group);
  }
  return profile;
}

}  // namespace optimus
