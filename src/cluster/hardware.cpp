// See hardware.h.
#include "cluster/hardware.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

void require_positive(double value, const std::string& location, const char* field) {
  if (!(std::isfinite(value) && value > 0))
    throw UserError("{}: {}: expected more than 0, got {}", location, field, value);
}

void require_range(std::int64_t value, std::int64_t smallest, std::int64_t largest,
                   const std::string& location, const char* field) {
  if (value < smallest || value > largest)
    throw UserError("{}: {}: expected {} to {}, got {}", location, field, smallest, largest, value);
}

void check_type(const DeviceType& type, const std::string& location) {
  if (type.name.empty()) throw UserError("{}: name is empty", location);
  require_positive(static_cast<double>(type.memory.value), location, "memory");
  require_positive(type.memory_bytes_per_second, location, "memory_bytes_per_second");
  if (!(std::isfinite(type.watts) && type.watts >= 0))
    throw UserError("{}: watts: expected at least 0, got {}", location, type.watts);
  if (type.price_per_hour && !(std::isfinite(*type.price_per_hour) && *type.price_per_hour >= 0))
    throw UserError("{}: price_per_hour: expected at least 0, got {}", location, *type.price_per_hour);
  require_positive(type.peak.fp32, location, "peak_flops.fp32");
  const PeakFlops& peak = type.peak;
  for (const double value : {peak.fp64, peak.tf32, peak.bf16, peak.fp16, peak.fp8, peak.fp4})
    if (!(std::isfinite(value) && value >= 0))
      throw UserError("{}: expected a peak of at least 0 operations per second, got {}", location, value);
  validate(type.gemm_efficiency, location + ": product_efficiency");
  std::set<NumberFormat> formats;
  for (const KernelTimes& times : type.kernels) {
    validate(times, fmt::format("{}: kernels in {}", location, text(times.format)));
    if (!formats.insert(times.format).second)
      throw UserError("{}: kernels in {} appear twice", location, text(times.format));
  }
}

void check_types(const HardwareProfile& profile, const std::string& source) {
  require_range(static_cast<std::int64_t>(profile.types.size()), 1, kMaxDeviceTypes, source,
                "the number of device types");
  std::set<std::string> names;
  for (const DeviceType& type : profile.types) {
    const std::string location = fmt::format("{}: device type {}", source, in_quotes(type.name));
    check_type(type, location);
    if (!names.insert(type.name).second) throw UserError("{} appears twice", location);
  }
}

void check_link(const LinkSpec& link, const std::string& location) {
  require_positive(link.bytes_per_second, location, "bytes_per_second");
  if (!(std::isfinite(link.latency.value) && link.latency.value >= 0))
    throw UserError("{}: latency_seconds: expected at least 0, got {}", location, link.latency.value);
  validate(link.efficiency, location + ": efficiency");
}

void check_group(const HardwareProfile& profile, const NodeGroup& group, const std::string& location) {
  require_range(group.type, 0, static_cast<std::int64_t>(profile.types.size()) - 1, location,
                "the device type");
  require_range(group.island, 0, kMaxIslands - 1, location, "island");
  require_range(group.num_devices, 1, kMaxDevices, location, "devices");
  require_range(group.devices_per_node, 1, kMaxDevices, location, "devices_per_node");
  require_range(group.devices_per_domain, 1, kMaxDevices, location, "devices_per_domain");
  const int larger = std::max(group.devices_per_node, group.devices_per_domain);
  const int smaller = std::min(group.devices_per_node, group.devices_per_domain);
  if (larger % smaller != 0)
    throw UserError("{}: devices_per_domain: expected a divisor or multiple of devices_per_node {}, got {}",
                    location, group.devices_per_node, group.devices_per_domain);
  require_range(group.host_memory.value, 0, INT64_MAX, location, "host_memory");
  require_range(group.network.nics_per_node, 1, 1000, location, "network.nics_per_node");
  if (!(std::isfinite(group.network.oversubscription) && group.network.oversubscription >= 1))
    throw UserError("{}: network.oversubscription: expected at least 1, got {}", location,
                    group.network.oversubscription);
  check_link(group.domain_link, location + ": domain_link");
  check_link(group.node_link, location + ": node_link");
  check_link(group.host_link, location + ": host_link");
  check_link(group.network.nic, location + ": network");
}

// Checks all groups and returns their total number of devices.
std::int64_t check_groups(const HardwareProfile& profile, const std::string& source) {
  std::int64_t num_devices = 0;
  for (std::size_t i = 0; i < profile.groups.size(); ++i) {
    check_group(profile, profile.groups[i], fmt::format("{}: groups[{}]", source, i));
    num_devices += profile.groups[i].num_devices;
  }
  require_range(num_devices, 1, kMaxDevices, source, "the number of devices");
  return num_devices;
}

void check_islands(const HardwareProfile& profile, const std::string& source) {
  std::set<int> islands;
  for (const NodeGroup& group : profile.groups) islands.insert(group.island);
  const int num_islands = static_cast<int>(islands.size());
  if (*islands.rbegin() != num_islands - 1)
    throw UserError("{}: expected islands numbered from 0 without gaps, got {} islands up to number {}",
                    source, num_islands, *islands.rbegin());
  std::set<std::pair<int, int>> pairs;
  for (const IslandLink& link : profile.island_links) {
    const std::string location =
        fmt::format("{}: the link between islands {} and {}", source, link.first, link.second);
    if (link.first < 0 || link.second >= num_islands || link.first >= link.second)
      throw UserError("{}: expected two of the {} islands, in ascending order", location, num_islands);
    if (!pairs.emplace(link.first, link.second).second) throw UserError("{} appears twice", location);
    check_link({link.bytes_per_second, link.latency, {}}, location);
  }
  const auto num_pairs =
      static_cast<std::size_t>(num_islands) * static_cast<std::size_t>(num_islands - 1) / 2;
  if (pairs.size() != num_pairs)
    throw UserError("{}: {} islands: expected {} island_links, one for each pair, got {}", source,
                    num_islands, num_pairs, pairs.size());
}

void check_devices(const HardwareProfile& profile, std::int64_t num_devices, const std::string& source) {
  std::int64_t previous_device = -1;
  for (const SpeedFactor& entry : profile.speed_factors) {
    require_range(entry.device, 0, num_devices - 1, source, "a device in speed_factors");
    if (entry.device <= previous_device)
      throw UserError("{}: speed_factors: expected devices in ascending order, got {} after {}", source,
                      entry.device, previous_device);
    require_positive(entry.factor, source, "a factor in speed_factors");
    previous_device = entry.device;
  }
  previous_device = -1;
  for (const int device : profile.missing_devices) {
    require_range(device, 0, num_devices - 1, source, "a device in missing_devices");
    if (device <= previous_device)
      throw UserError("{}: missing_devices: expected devices in ascending order, got {} after {}", source,
                      device, previous_device);
    previous_device = device;
  }
  if (static_cast<std::int64_t>(profile.missing_devices.size()) == num_devices)
    throw UserError("{}: all {} devices are missing", source, num_devices);
}

}  // namespace

void validate(const HardwareProfile& profile, const std::string& source) {
  require_range(static_cast<std::int64_t>(profile.groups.size()), 1, kMaxNodeGroups, source,
                "the number of groups");
  check_types(profile, source);
  const std::int64_t num_devices = check_groups(profile, source);
  check_islands(profile, source);
  check_devices(profile, num_devices, source);
}

double peak_flops(const DeviceType& type, NumberFormat format) {
  switch (format) {
    case NumberFormat::fp64:
      return type.peak.fp64;
    case NumberFormat::fp32:
      return type.peak.fp32;
    case NumberFormat::tf32:
      return type.peak.tf32;
    case NumberFormat::bf16:
      return type.peak.bf16;
    case NumberFormat::fp16:
      return type.peak.fp16;
    case NumberFormat::fp8:
      return type.peak.fp8;
    case NumberFormat::fp4:
      return type.peak.fp4;
  }
  return 0;
}

std::string text(NumberFormat format) {
  switch (format) {
    case NumberFormat::fp64:
      return "fp64";
    case NumberFormat::fp32:
      return "fp32";
    case NumberFormat::tf32:
      return "tf32";
    case NumberFormat::bf16:
      return "bf16";
    case NumberFormat::fp16:
      return "fp16";
    case NumberFormat::fp8:
      return "fp8";
    case NumberFormat::fp4:
      return "fp4";
  }
  return "";
}

}  // namespace optimus
