// Formats a cluster in a few aligned lines.
#include <fmt/format.h>

#include "base/text.h"
#include "base/units.h"
#include "cluster/cluster.h"

namespace optimus {
namespace {

std::string rate_text(double per_second, const char* unit) {
  constexpr const char* kPrefixes[] = {"", "K", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  while (per_second >= 1000 && prefix + 1 < std::size(kPrefixes)) per_second /= 1000, ++prefix;
  return fmt::format("{:.4g} {}{}/s", per_second, kPrefixes[prefix], unit);
}

// The number format that is commonly used to compare devices.
NumberFormat comparison_format(const DeviceType& type) {
  if (type.peak.bf16 > 0) return NumberFormat::bf16;
  return type.peak.fp16 > 0 ? NumberFormat::fp16 : NumberFormat::fp32;
}

std::vector<std::string> group_row(const HardwareProfile& profile, const NodeGroup& group) {
  const DeviceType& type = profile.types[static_cast<std::size_t>(group.type)];
  const NumberFormat format = comparison_format(type);
  const double network_share = group.network.nic.bytes_per_second * group.network.nics_per_node /
                               group.devices_per_node / group.network.oversubscription;
  return {type.name,
          with_commas(group.num_devices),
          fmt::format("{} x {}", group.num_nodes(), group.devices_per_node),
          fmt::format("{}", group.devices_per_domain),
          text(type.memory),
          fmt::format("{} {}", rate_text(peak_flops(type, format), "FLOP"), text(format)),
          rate_text(type.memory_bytes_per_second, "B"),
          rate_text(group.domain_link.bytes_per_second, "B"),
          rate_text(network_share, "B"),
          fmt::format("{}", group.island)};
}

}  // namespace

std::string text(const Cluster& cluster) {
  const HardwareProfile& profile = cluster.profile();
  constexpr std::size_t kMaxRows = 20;
  const auto count = [](int number, const char* noun) {
    return fmt::format("{} {}{}", with_commas(number), noun, number == 1 ? "" : "s");
  };
  std::string result = fmt::format("{}: {}, {}, {}\n", profile.name.empty() ? "cluster" : profile.name,
                                   count(cluster.num_devices(), "device"), count(cluster.num_nodes(), "node"),
                                   count(cluster.num_islands(), "island"));
  TextTable table({"type", "devices", "nodes", "domain", "memory", "peak", "memory speed", "fast link",
                   "network share", "island"});
  for (std::size_t i = 0; i < profile.groups.size() && i < kMaxRows; ++i)
    table.row(group_row(profile, profile.groups[i]));
  result += table.text();
  if (profile.groups.size() > kMaxRows)
    result += fmt::format("… and {} more groups\n", profile.groups.size() - kMaxRows);
  for (std::size_t i = 0; i < profile.island_links.size() && i < kMaxRows; ++i)
    result += fmt::format(
        "islands {} and {}: {}, {}\n", profile.island_links[i].first, profile.island_links[i].second,
        rate_text(profile.island_links[i].bytes_per_second, "B"), text(profile.island_links[i].latency));
  if (!profile.missing_devices.empty())
    result += fmt::format("missing: {}\n", count(static_cast<int>(profile.missing_devices.size()), "device"));
  if (!profile.speed_factors.empty())
    result += fmt::format("non-standard speed: {}\n",
                          count(static_cast<int>(profile.speed_factors.size()), "device"));
  return result;
}

}  // namespace optimus
